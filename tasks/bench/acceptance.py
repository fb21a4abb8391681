"""Acceptance length and rates per draft position, pooled from the figures of single prompts.

A histogram counts verify steps by the number of draft tokens accepted: (6, 3, 1) is 10 steps, of which 6 accepted
none, 3 accepted one and 1 accepted two; 5 tokens accepted, acceptance length 1 + 5 / 10.
"""

from collections.abc import Iterable, Sequence

from tasks.bench.measurement import Acceptance, PromptResult
from tasks.errors import EvidenceError


def pool(results: Sequence[PromptResult], dataset: str) -> Acceptance:
    """Return the acceptance of all results together, named dataset.

    Raises EvidenceError: no verify step at all, or a histogram that disagrees with its own totals.
    """
    for result in results:
        check_histogram(result)
    num_steps = sum(result.num_steps for result in results)
    num_accepted = sum(result.num_accepted for result in results)
    if num_steps == 0:
        raise EvidenceError(
            f"no verify step in the {len(results)} answers on data set {dataset!r}, so acceptance has no value there; "
            "expected a server with a draft and answers longer than one token"
        )
    return Acceptance(
        dataset=dataset,
        num_prompts=len(results),
        num_steps=num_steps,
        num_accepted=num_accepted,
        acceptance_length=1 + num_accepted / num_steps,
        per_position=_per_position(results, num_steps),
    )


def pool_datasets(results: Sequence[PromptResult]) -> tuple[Acceptance, ...]:
    """Return one pooled acceptance per data set in order of appearance.

    Parts such as "general/code" are preceded by the whole, "general", pooled over them.
    """
    members: dict[str, list[PromptResult]] = {}
    for result in results:
        members.setdefault(result.dataset.split("/", 1)[0], []).append(result)
    for result in results:
        if "/" in result.dataset:
            members.setdefault(result.dataset, []).append(result)
    order = sorted(members, key=lambda name: (list(members).index(name.split("/", 1)[0]), "/" in name))
    return tuple(pool(members[name], name) for name in order)


def macro_acceptance_length(acceptances: Iterable[Acceptance]) -> float:
    """Return the plain mean of acceptance lengths over data sets, so that a big set cannot hide a small one.

    Pass parts or wholes, not both. Raises EvidenceError when there is none.
    """
    lengths = [found.acceptance_length for found in acceptances]
    if not lengths:
        raise EvidenceError("asked for the mean acceptance length over data sets, but none was measured")
    return sum(lengths) / len(lengths)


def check_histogram(result: PromptResult) -> None:
    """Raise EvidenceError unless the histogram adds up to the result's steps and accepted tokens."""
    steps = sum(result.histogram)
    accepted = sum(position * count for position, count in enumerate(result.histogram))
    if (steps, accepted) != (result.num_steps, result.num_accepted):
        raise EvidenceError(
            f"the acceptance histogram of prompt {result.prompt_id!r} adds up to {steps} steps and {accepted} accepted "
            f"tokens, but the server counted {result.num_steps} and {result.num_accepted}; "
            "these figures cannot be pooled, so check the vLLM version"
        )


def _per_position(results: Sequence[PromptResult], num_steps: int) -> tuple[float, ...]:
    width = max(len(result.histogram) for result in results)
    by_depth = [
        sum(result.histogram[depth] for result in results if depth < len(result.histogram)) for depth in range(width)
    ]
    return tuple(sum(by_depth[position:]) / num_steps for position in range(1, width))
