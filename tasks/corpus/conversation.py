"""One conversation to ask the target: read from a record, checked, cut after the last user turn.

A record is one of
    {"id": "q1", "prompt": "What is friction?"}
    {"id": "q2", "messages": [{"role": "user", "content": "Hi"}]}            (also "conversations")
    {"id": "q3", "conversations": [{"from": "human", "value": "Hi"}]}        (ShareGPT)
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.recipe.fingerprint import canonical_json

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}
KEPT_FIELDS = ("tool_calls", "tool_call_id", "name", "reasoning_content")


class PromptRejected(ValueError):
    """A record cannot be asked; str(error) is the reason, counted in the account."""


class Conversation(BaseModel):
    """A question for the target, with the turns before it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    dataset: str = "prompts"

    @property
    def text(self) -> str:
        """Return the text of the user turns, for comparing prompt sets."""
        return "\n".join(str(turn["content"]) for turn in self.messages if turn["role"] == "user")


def is_encodable(text: str) -> bool:
    """Tell whether a text is UTF-8 encodable; half a surrogate pair is legal JSON but is not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _content(value: object) -> str | None:
    """Return a turn's text; parts of type text are joined, null stays null."""
    if isinstance(value, list):
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in value):
            raise PromptRejected("has image or audio parts")
        value = "".join(str(part.get("text", "")) for part in value)
    if value is not None and not isinstance(value, str):
        raise PromptRejected("content is neither text nor a list of parts")
    if value is not None and not is_encodable(value):
        raise PromptRejected("holds half a surrogate pair")
    return value


def _turn(record: object) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise PromptRejected("a turn is not an object")
    role = record.get("role", record.get("from"))
    if not isinstance(role, str) or role not in ROLES:
        raise PromptRejected(f"unknown role {str(role)[:20]!r}")
    turn = {"role": ROLES[role], "content": _content(record.get("content", record.get("value")))}
    turn.update({name: record[name] for name in KEPT_FIELDS if record.get(name) is not None})
    if not turn["content"] and not turn.get("tool_calls"):
        raise PromptRejected("has an empty turn")
    return turn


def _check_order(turns: Sequence[Mapping[str, Any]]) -> None:
    """Raise PromptRejected unless roles follow each other as a chat template expects."""
    before = None
    for turn in turns:
        role = turn["role"]
        if role == "system" and before is not None:
            raise PromptRejected("system turn after the first")
        if role == "user" and before == "user":
            raise PromptRejected("two user turns in a row")
        if role == "assistant" and before in (None, "system"):
            raise PromptRejected("starts with an assistant turn")
        if role == "assistant" and before == "assistant":
            raise PromptRejected("two assistant turns in a row")
        if role == "tool" and before not in ("assistant", "tool"):
            raise PromptRejected("tool turn without a call before it")
        before = role


def _tools(value: object) -> tuple[dict[str, Any], ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PromptRejected("tools is not JSON") from error
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise PromptRejected("tools is not a list of objects")
    return tuple(value)


def _turns(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    if isinstance(record.get("prompt"), str):
        return [_turn({"role": "user", "content": record["prompt"]})]
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list):
        raise PromptRejected("has none of prompt, messages, conversations")
    return [_turn(turn) for turn in turns]


def to_conversation(record: Mapping[str, Any], *, system: str | None, dataset: str) -> Conversation:
    """Return the conversation of a record, ready to be answered.

    Turns after the last user or tool turn are the old answer and are dropped: the target answers anew.
    system: put first where the record has no system turn. Raises PromptRejected.
    """
    turns = _turns(record)
    while turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not any(turn["role"] == "user" for turn in turns):
        raise PromptRejected("has no user turn")
    _check_order(turns)
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    tools = _tools(record.get("tools"))
    given = record.get("id")
    name = str(given) if given is not None else hashlib.sha256(canonical_json([turns, tools])).hexdigest()[:16]
    return Conversation(id=name, messages=tuple(turns), tools=tools, dataset=str(record.get("domain", dataset)))
