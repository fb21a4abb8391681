"""Guards the measuring itself: order, concurrency, warm-up, counting by token ids, the check against the counters."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tasks.bench.measure import SpeedBlock, measure_acceptance, measure_outputs, measure_speed
from tasks.corpus.conversation import Conversation
from tasks.errors import EvidenceError, RequestUnanswered
from tasks.serving.answer import Answer, SpecCounts
from tasks.serving.client import Sampling
from tasks.serving.counters import Counters

GREEDY = Sampling(max_tokens=64)


def prompts(count: int) -> list[Conversation]:
    return [
        Conversation(id=f"p{n}", dataset="service", messages=({"role": "user", "content": str(n)},))
        for n in range(count)
    ]


class Target:
    """A target in memory: answers prompt n with n + 2 tokens, and counts what it did as a server would."""

    def __init__(self, *, spec: bool = True, num_tokens: Callable[[int], int] = lambda n: n + 2) -> None:
        """Start with nothing asked; spec: whether answers carry figures."""
        self.asked: list[tuple[str, int]] = []
        self.most_in_flight = 0
        self.num_drafts = self.num_accepted = 0
        self._in_flight = 0
        self._spec = spec
        self._num_tokens = num_tokens

    async def chat(self, messages: Any, sampling: Sampling, tools: Any = ()) -> Answer:
        """Return the answer to a prompt, two milliseconds later."""
        number = int(messages[-1]["content"])
        self.asked.append((f"p{number}", sampling.max_tokens))
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        await asyncio.sleep(0.002)
        self._in_flight -= 1
        num_tokens = self._num_tokens(number)
        spec = SpecCounts(3, 2, 9, (1, 2, 0, 0)) if num_tokens > 1 else SpecCounts(0, 0, 0, (0, 0, 0, 0))
        self.num_drafts += spec.num_steps
        self.num_accepted += spec.num_accepted
        token_ids = tuple(range(number, number + num_tokens))
        return Answer("text", (1,) * 7, token_ids, "stop", 0.25, spec if self._spec else None)

    def counters(self) -> Counters:
        """Return what the server would have counted."""
        return Counters(self.num_drafts, 3 * self.num_drafts, self.num_accepted, (self.num_accepted, 0, 0), 0, (1.0,))


async def accepted(target: Target, count: int = 5, read: Callable[[], Counters] | None = None) -> list[int]:
    found = await measure_acceptance(
        target, prompts(count), GREEDY, concurrency=2, read_counters=read or target.counters
    )
    return [result.num_accepted for result in found]


def test_results_are_in_the_order_of_the_prompts_and_hold_the_figures() -> None:
    target = Target()
    found = asyncio.run(measure_acceptance(target, prompts(5), GREEDY, concurrency=3, read_counters=target.counters))
    assert [result.prompt_id for result in found] == ["p0", "p1", "p2", "p3", "p4"]
    assert [result.completion_tokens for result in found] == [2, 3, 4, 5, 6]
    assert {(r.num_steps, r.num_accepted, r.histogram, r.prompt_tokens, r.latency_s) for r in found} == {
        (3, 2, (1, 2, 0, 0), 7, 0.25)
    }
    assert len({result.output_sha256 for result in found}) == 5


def test_prompts_are_sent_in_order_at_the_concurrency_and_not_above() -> None:
    target = Target(spec=False)
    asyncio.run(measure_outputs(target, prompts(9), GREEDY, concurrency=4))
    assert [name for name, _ in target.asked] == [f"p{n}" for n in range(9)]
    assert target.most_in_flight == 4


def test_warm_up_is_twice_the_concurrency_short_and_not_counted() -> None:
    target = Target()
    assert asyncio.run(accepted(target)) == [2] * 5
    assert target.asked[:4] == [(f"p{n}", 16) for n in range(4)]
    assert target.asked[4:] == [(f"p{n}", 64) for n in range(5)]
    assert target.num_accepted == 2 * 9


def test_warm_up_repeats_prompts_when_there_are_few() -> None:
    target = Target()
    block = SpeedBlock("draft", concurrency=4, repeat=1)
    asyncio.run(measure_speed(target, prompts(3), GREEDY, block))
    assert [name for name, _ in target.asked[:8]] == ["p0", "p1", "p2", "p0", "p1", "p2", "p0", "p1"]


def test_speed_counts_token_ids_over_the_wall_time_of_the_block() -> None:
    speed = asyncio.run(measure_speed(Target(), prompts(4), GREEDY, SpeedBlock("baseline", 2, 1)))
    assert (speed.arm, speed.concurrency, speed.repeat, speed.num_prompts) == ("baseline", 2, 1, 4)
    assert speed.completion_tokens == 2 + 3 + 4 + 5
    assert speed.tok_per_s == pytest.approx(14 / speed.wall_s)
    assert speed.wall_s >= 2 * 0.002


def test_progress_is_told_of_every_answer_but_not_of_the_warm_up() -> None:
    told: list[tuple[int, int]] = []
    target = Target(spec=False)
    asyncio.run(
        measure_speed(target, prompts(3), GREEDY, SpeedBlock("draft", 1, 0), progress=lambda *n: told.append(n))
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_server_without_figures_is_refused() -> None:
    with pytest.raises(EvidenceError, match="5 of 5 answers came without usable speculative-decoding figures"):
        asyncio.run(accepted(Target(spec=False)))


def test_answers_of_one_token_have_no_step_and_are_kept() -> None:
    assert asyncio.run(accepted(Target(num_tokens=lambda n: 1 if n == 0 else 5), count=2)) == [0, 2]


def test_foreign_work_in_the_counters_is_noticed() -> None:
    target = Target()
    reads = []

    def read() -> Counters:
        reads.append(1)
        if len(reads) > 1:
            target.num_drafts += 1
        return target.counters()

    with pytest.raises(EvidenceError, match="'steps': 15, .*moved by .*'steps': 16"):
        asyncio.run(accepted(target, read=read))


def test_accepted_tokens_at_other_positions_are_noticed() -> None:
    target = Target()

    def read() -> Counters:
        return replace(target.counters(), accepted_per_position=(0, target.num_accepted, 0))

    with pytest.raises(EvidenceError, match=r"\(10, 0, 0\).*\(0, 10, 0\)"):
        asyncio.run(accepted(target, read=read))


def test_counters_that_lag_behind_are_waited_for() -> None:
    target = Target()
    scrapes: list[Counters] = []

    def late() -> Counters:
        scrapes.append(target.counters())
        return scrapes[max(0, len(scrapes) - 4)]

    assert asyncio.run(accepted(target, read=late)) == [2] * 5
    assert len(scrapes) >= 5


def test_an_empty_prompt_set_is_refused() -> None:
    with pytest.raises(EvidenceError, match="prompt set is empty"):
        asyncio.run(accepted(Target(), count=0))


def test_answers_without_any_token_give_no_speed() -> None:
    with pytest.raises(EvidenceError, match="without a single token"):
        asyncio.run(measure_speed(Target(num_tokens=lambda n: 0), prompts(2), GREEDY, SpeedBlock("draft", 1, 0)))


def test_one_lost_request_ends_the_block_with_its_own_error_and_leaves_nothing_running() -> None:
    class Losing(Target):
        async def chat(self, messages: Any, sampling: Sampling, tools: Any = ()) -> Answer:
            if messages[-1]["content"] == "3":
                raise RequestUnanswered("lost")
            return await super().chat(messages, sampling)

    async def run() -> int:
        with pytest.raises(RequestUnanswered, match="lost"):
            await measure_outputs(Losing(), prompts(8), GREEDY, concurrency=3)
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1
