"""Measuring one arm: the same prompts, in the same order, at a fixed number of requests in flight.

Warm-up requests come first and are not counted. Tokens are counted from token ids, never from chunks. With a draft, the
figures of single answers are summed and must equal the server's own counters over the window: two ways to one number.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tasks.bench.measurement import ArmName, PromptResult, Speed
from tasks.corpus.conversation import Conversation
from tasks.errors import EvidenceError
from tasks.recipe.fingerprint import digest
from tasks.serving.answer import Answer
from tasks.serving.client import Sampling
from tasks.serving.counters import Counters, difference

# Rule B.3: at least twice the concurrency; short answers reach every batch shape and buffer that long ones do.
WARM_UP_ROUNDS = 2
WARM_UP_TOKENS = 16
# The engine publishes its counters a step after it has answered.
SETTLE_S = 10.0
POLL_S = 0.1

Progress = Callable[[int, int], None]
"""Told (answers so far, answers in all) after each answer."""


class ChatClient(Protocol):
    """What is measured through; its own limit of requests in flight must not be below the concurrency measured."""

    async def chat(
        self, messages: Sequence[dict[str, Any]], sampling: Sampling, tools: Sequence[dict[str, Any]] = ()
    ) -> Answer:
        """Return the answer to a conversation."""
        ...


@dataclass(frozen=True)
class SpeedBlock:
    """Which block of a speed measurement: arm, requests in flight, and number of the repeat."""

    arm: ArmName
    concurrency: int
    repeat: int


async def measure_outputs(
    client: ChatClient,
    prompts: Sequence[Conversation],
    sampling: Sampling,
    *,
    concurrency: int,
    progress: Progress | None = None,
) -> tuple[PromptResult, ...]:
    """Return one result per prompt from a server without a draft, for comparing its outputs; in order of prompts."""
    answers = await _answers(client, prompts, sampling, concurrency, progress)
    return tuple(_result(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))


async def measure_acceptance(
    client: ChatClient,
    prompts: Sequence[Conversation],
    sampling: Sampling,
    *,
    concurrency: int,
    read_counters: Callable[[], Counters],
    progress: Progress | None = None,
) -> tuple[PromptResult, ...]:
    """Return one result per prompt from a server with a draft, in order of prompts.

    read_counters: a scrape of the same server. ignore_eos should be off: text after the end flatters a draft.
    Raises EvidenceError: an answer without figures, or figures that differ from the server's counters.
    """
    await _warm_up(client, prompts, sampling, concurrency)
    before = await _idle_counters(read_counters)
    answers = await _answers(client, prompts, sampling, concurrency, progress)
    _require_figures(prompts, answers)
    await _cross_check(answers, before, read_counters)
    return tuple(_result(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))


async def measure_speed(
    client: ChatClient,
    prompts: Sequence[Conversation],
    sampling: Sampling,
    block: SpeedBlock,
    *,
    progress: Progress | None = None,
) -> Speed:
    """Return the output tokens per second of one block; ignore_eos in sampling makes the work of two arms equal."""
    await _warm_up(client, prompts, sampling, block.concurrency)
    started = time.perf_counter()
    answers = await _answers(client, prompts, sampling, block.concurrency, progress)
    wall_s = time.perf_counter() - started
    completion_tokens = sum(len(answer.token_ids) for answer in answers)
    if completion_tokens == 0:
        raise EvidenceError(
            f"{len(answers)} prompts were answered without a single token; there is no speed to measure"
        )
    return Speed(
        arm=block.arm,
        concurrency=block.concurrency,
        repeat=block.repeat,
        num_prompts=len(prompts),
        completion_tokens=completion_tokens,
        wall_s=wall_s,
        tok_per_s=completion_tokens / wall_s,
    )


async def _warm_up(client: ChatClient, prompts: Sequence[Conversation], sampling: Sampling, concurrency: int) -> None:
    short = replace(sampling, max_tokens=min(sampling.max_tokens, WARM_UP_TOKENS))
    wanted = WARM_UP_ROUNDS * concurrency
    repeated = [prompts[index % len(prompts)] for index in range(wanted)] if prompts else []
    await _answers(client, repeated, short, concurrency, None)


async def _answers(
    client: ChatClient,
    prompts: Sequence[Conversation],
    sampling: Sampling,
    concurrency: int,
    progress: Progress | None,
) -> list[Answer]:
    """Return the answers in order; prompts are sent in order, the next one as soon as one is answered."""
    if not prompts:
        raise EvidenceError("the prompt set is empty; there is nothing to measure on")
    found: dict[int, Answer] = {}
    waiting = iter(enumerate(prompts))

    async def work() -> None:
        for index, prompt in waiting:
            found[index] = await client.chat(prompt.messages, sampling, prompt.tools)
            if progress:
                progress(len(found), len(prompts))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(prompts)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [found[index] for index in range(len(prompts))]


def _result(prompt: Conversation, answer: Answer) -> PromptResult:
    spec = answer.spec
    return PromptResult(
        prompt_id=prompt.id,
        dataset=prompt.dataset,
        num_steps=spec.num_steps if spec else 0,
        num_accepted=spec.num_accepted if spec else 0,
        histogram=spec.histogram if spec else (),
        completion_tokens=len(answer.token_ids),
        prompt_tokens=len(answer.prompt_token_ids),
        latency_s=answer.latency_s,
        output_sha256=digest(list(answer.token_ids)),
    )


def _require_figures(prompts: Sequence[Conversation], answers: Sequence[Answer]) -> None:
    # The first token comes from the prompt's own pass, so an answer of one token has no verify step to report.
    bare = [
        prompt.id
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer.spec is None and len(answer.token_ids) > 1
    ]
    if bare:
        raise EvidenceError(
            f"{len(bare)} of {len(answers)} answers came without usable speculative-decoding figures, first prompt "
            f"{bare[0]!r}; start the server with a draft and --per-request-spec-decode-metrics summary"
        )


async def _idle_counters(read_counters: Callable[[], Counters]) -> Counters:
    """Return the counters once nothing runs, or as they are after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = await asyncio.to_thread(read_counters)
        if not found.num_busy or time.monotonic() > deadline:
            return found
        await asyncio.sleep(POLL_S)


async def _cross_check(answers: Sequence[Answer], before: Counters, read_counters: Callable[[], Counters]) -> None:
    figures = [answer.spec for answer in answers if answer.spec]
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = await _idle_counters(read_counters)
        behind = after.num_drafts - before.num_drafts < sum(found.num_steps for found in figures)
        if not behind or time.monotonic() > deadline:
            break
        await asyncio.sleep(POLL_S)
    delta = difference(before, after)
    counted = _figures(delta.num_drafts, delta.num_drafted, delta.num_accepted, delta.accepted_per_position)
    width = max((len(found.histogram) for found in figures), default=0)
    expected = _figures(
        sum(found.num_steps for found in figures),
        sum(found.num_drafted for found in figures),
        sum(found.num_accepted for found in figures),
        tuple(sum(sum(found.histogram[depth:]) for found in figures) for depth in range(1, width)),
    )
    if counted != expected:
        raise EvidenceError(
            f"the answers' own figures add up to {expected}, the server's counters moved by {counted}; expected the "
            "same. Measure on a server that nobody else uses and that answers every request at the first try"
        )


def _figures(steps: int, drafted: int, accepted: int, per_position: tuple[int, ...]) -> dict[str, object]:
    return {"steps": steps, "drafted": drafted, "accepted": accepted, "accepted per position": per_position}
