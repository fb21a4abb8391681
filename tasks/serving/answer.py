"""What a vLLM server answers to one request, parsed.

The parts of an answer that are read (completions; a chat answer has message.content where this has text):

    {"prompt_token_ids": [1, 2], "choices": [{"text": "Hi", "token_ids": [5], "finish_reason": "stop"}],
     "metrics": {"speculative_decoding": {"num_spec_steps": 9, "num_accepted_draft_tokens": 7,
                 "num_draft_tokens": 27, "acceptance_histogram": [4, 3, 2, 0]}}}

Chat answers have prompt_token_ids at the top, completions in the choice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import EvidenceError, RequestRejected, ServerError


@dataclass(frozen=True)
class SpecCounts:
    """Speculative decoding within one request."""

    num_steps: int
    """Verification steps."""
    num_accepted: int
    num_drafted: int
    histogram: tuple[int, ...]
    """[K + 1] steps that accepted exactly 0, 1, ..., K draft tokens."""


@dataclass(frozen=True)
class Answer:
    """One answer, with the exact tokens that the server used and produced."""

    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: str
    latency_s: float
    spec: SpecCounts | None
    """None where the server has no draft, or does not report this."""


def _parts(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield the values inside a dict or a list, each with its place; nothing for a list of token ids."""
    if isinstance(value, dict):
        yield from ((f"{where}.{key}", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)) and not all(isinstance(inner, int) for inner in value):
        yield from ((f"{where}[{index}]", inner) for index, inner in enumerate(value))


def find_lone_surrogate(value: object, where: str = "prompt") -> str | None:
    """Return the place of a lone surrogate in nested texts ("prompt[0].content, character 3"), or None."""
    if isinstance(value, str):
        index = next((index for index, char in enumerate(value) if 0xD800 <= ord(char) <= 0xDFFF), None)
        return None if index is None else f"{where}, character {index}"
    inside = (find_lone_surrogate(inner, place) for place, inner in _parts(value, where))
    return next((place for place in inside if place), None)


def require_encodable(prompt: object) -> None:
    """Raise RequestRejected if the prompt holds text that no server can be sent."""
    if place := find_lone_surrogate(prompt):
        raise RequestRejected(
            f"the text cannot be sent: {place} is half of a surrogate pair, which UTF-8 has no bytes for. "
            "Repair or leave out this prompt."
        )


def _ids(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        return tuple(value)
    return None


def _only_choice(body: dict[str, Any], where: str) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise ServerError(f"{where} answered without exactly one choice: keys {sorted(body)}")
    return choices[0]


def _prompt_ids(body: dict[str, Any], choice: dict[str, Any]) -> tuple[int, ...] | None:
    found = _ids(body.get("prompt_token_ids"))
    return found if found is not None else _ids(choice.get("prompt_token_ids"))


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def parse_spec_counts(body: dict[str, Any]) -> SpecCounts | None:
    """Return the per-request figures, or None: vLLM calls them experimental, so nothing in them is taken for granted.

    Figures that do not agree with one another are not used either.
    """
    metrics = body.get("metrics")
    block = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(block, dict):
        return None
    names = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    numbers = _ids([block.get(name) for name in names])
    histogram = _ids(block.get("acceptance_histogram"))
    if numbers is None or histogram is None:
        return None
    steps, accepted, drafted = numbers
    if sum(histogram) != steps or sum(index * count for index, count in enumerate(histogram)) != accepted:
        return None
    return SpecCounts(steps, accepted, drafted, histogram)


def parse_answer(body: dict[str, Any], latency_s: float, where: str) -> Answer:
    """Return the answer in a response's body; where: the server, for messages.

    Raises ServerError: no choice, or no token ids. EvidenceError: the text is not encodable.
    """
    choice = _only_choice(body, where)
    prompt_ids, token_ids = _prompt_ids(body, choice), _ids(choice.get("token_ids"))
    if prompt_ids is None or token_ids is None:
        raise ServerError(
            f"{where} did not return token ids though asked to (return_token_ids): no vLLM, or one that is too old"
        )
    text = _text(choice)
    if place := find_lone_surrogate(text, "text"):
        raise EvidenceError(f"{where} answered with text that cannot be stored: {place} is half of a surrogate pair")
    return Answer(text, prompt_ids, token_ids, str(choice.get("finish_reason")), latency_s, parse_spec_counts(body))


def require_ids(body: dict[str, Any], sent: Sequence[int]) -> None:
    """Raise EvidenceError unless the server used exactly the token ids that it was sent."""
    used = _prompt_ids(body, _only_choice(body, "the server"))
    if used is None:
        raise ServerError("the server did not say which token ids it used (return_token_ids)")
    if used != tuple(sent):
        first = next((i for i, (a, b) in enumerate(zip(sent, used, strict=False)) if a != b), min(len(sent), len(used)))
        raise EvidenceError(
            f"the server used other tokens than it was sent: {len(used)} instead of {len(sent)}, first different at "
            f"position {first}"
        )
