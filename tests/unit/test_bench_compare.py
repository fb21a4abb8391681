"""Guards the comparison of two arms: pairing, ratios, agreement, and a bootstrap checked against known answers."""

import pytest

from tasks.bench.acceptance import pool
from tasks.bench.compare import acceptance_difference, output_agreement, paired_bootstrap, speed_ratios
from tasks.bench.measurement import PromptResult, Speed
from tasks.errors import EvidenceError


def result(prompt: int, accepted: int, steps: int = 10, dataset: str = "d", **changes: object) -> PromptResult:
    fields: dict[str, object] = {
        "prompt_id": str(prompt),
        "dataset": dataset,
        "num_steps": steps,
        "num_accepted": accepted,
        "histogram": (steps - accepted, accepted),
        "completion_tokens": 20,
        "prompt_tokens": 7,
        "latency_s": 0.5,
        "output_sha256": "00",
    }
    return PromptResult.model_validate(fields | changes)


def speed(concurrency: int, repeat: int, tok_per_s: float, num_prompts: int = 4) -> Speed:
    return Speed(
        arm="draft",
        concurrency=concurrency,
        repeat=repeat,
        num_prompts=num_prompts,
        completion_tokens=100,
        wall_s=100 / tok_per_s,
        tok_per_s=tok_per_s,
    )


def test_speed_ratios_pair_by_repeat_and_take_the_median() -> None:
    ours = [speed(8, 0, 90), speed(1, 0, 12), speed(1, 1, 30), speed(1, 2, 13)]
    theirs = [speed(1, 0, 10), speed(1, 1, 10), speed(1, 2, 10), speed(8, 0, 100)]
    one, eight = speed_ratios(ours, theirs)
    assert (one.concurrency, one.per_repeat) == (1, pytest.approx((1.2, 3.0, 1.3)))
    assert one.median == pytest.approx(1.3)
    assert (eight.concurrency, eight.median) == (8, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ([], "do not pair"),
        ([speed(1, 1, 10)], "do not pair"),
        ([speed(1, 0, 10, num_prompts=5)], "different numbers of prompts"),
        ([speed(1, 0, 10), speed(1, 0, 11)], "measured twice"),
    ],
)
def test_speeds_that_do_not_pair_are_refused(theirs: list[Speed], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        speed_ratios([speed(1, 0, 12)], theirs)


def test_acceptance_difference_is_absolute_and_relative() -> None:
    found = acceptance_difference(pool([result(1, 8)], "d"), pool([result(1, 5)], "d"))
    assert (found.absolute, found.relative) == (pytest.approx(0.3), pytest.approx(0.2))
    with pytest.raises(EvidenceError, match="cannot be compared"):
        acceptance_difference(pool([result(1, 8)], "d"), pool([result(1, 5)], "other"))


def test_agreement_counts_prompts_with_the_same_tokens() -> None:
    ours = [result(1, 0), result(2, 0), result(3, 0), result(4, 0)]
    theirs = [result(4, 0), result(3, 0, output_sha256="11"), result(2, 0), result(1, 0)]
    found = output_agreement(ours, theirs)
    assert (found.num_identical, found.num_prompts, found.fraction) == (3, 4, 0.75)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ([result(2, 0)], "different prompts"),
        ([result(1, 0, dataset="e")], "different prompts"),
        ([result(1, 0, prompt_tokens=14)], "chat template"),
        ([result(1, 0), result(1, 0)], "name only 1 different prompts"),
    ],
)
def test_arms_that_do_not_pair_are_refused(theirs: list[PromptResult], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        output_agreement([result(1, 0)], theirs)


def test_an_arm_against_itself_is_no_better_and_no_worse() -> None:
    arm = [result(number, number % 10) for number in range(40)]
    found = paired_bootstrap(arm, arm, num_draws=500)
    assert (found.point, found.low, found.high, found.p_better) == (0.0, 0.0, 0.0, 0.5)


def test_the_point_is_the_ratio_of_macro_means() -> None:
    # small: 1.8 against 1.5; big (three prompts): 1.2 against 1.2. Macro 1.5 against 1.35.
    ours = [result(1, 8, dataset="small"), *(result(number, 2, dataset="big") for number in (2, 3, 4))]
    theirs = [result(1, 5, dataset="small"), *(result(number, 2, dataset="big") for number in (2, 3, 4))]
    found = paired_bootstrap(ours, theirs, num_draws=200)
    assert found.point == pytest.approx(1.5 / 1.35 - 1)
    assert (found.low, found.high) == (pytest.approx(found.point), pytest.approx(found.point))
    assert found.p_better == 1.0


def test_two_prompts_give_the_binomial_answer() -> None:
    # Lengths of the reference are 1.5 always. Ours is 1.7 and 1.4 on the two prompts, so a draw of two prompts gives
    # 1.7, 1.55 (twice as likely) or 1.4: better in 3 of 4 draws, interval from 1.4 / 1.5 to 1.7 / 1.5.
    found = paired_bootstrap([result(1, 7), result(2, 4)], [result(1, 5), result(2, 5)], num_draws=20_000)
    assert found.p_better == pytest.approx(0.75, abs=0.01)
    assert (found.low, found.high) == (pytest.approx(1.4 / 1.5 - 1), pytest.approx(1.7 / 1.5 - 1))
    assert found.point == pytest.approx(1.55 / 1.5 - 1)


def test_pairing_cancels_what_prompts_have_in_common() -> None:
    # Prompts differ a lot (0 to 8 of 10), the arms always by one token in ten: the sign is certain.
    ours = [result(number, number % 9 + 1) for number in range(45)]
    theirs = [result(number, number % 9) for number in range(45)]
    found = paired_bootstrap(ours, theirs, num_draws=1000)
    assert found.low > 0
    assert found.p_better == 1.0


def test_the_same_seed_gives_the_same_interval_in_any_order_of_data_sets() -> None:
    ours = [result(number, number % 10, dataset=f"d{number % 3}") for number in range(30)]
    theirs = [result(number, (number * 7) % 10, dataset=f"d{number % 3}") for number in range(30)]
    first = paired_bootstrap(ours, theirs, num_draws=300, seed=7)
    assert first == paired_bootstrap(ours, list(reversed(theirs)), num_draws=300, seed=7)
    assert first != paired_bootstrap(ours, theirs, num_draws=300, seed=8)


def test_an_arm_without_verify_steps_is_refused() -> None:
    with pytest.raises(EvidenceError, match="no verify step on data set 'd'"):
        paired_bootstrap([result(1, 5)], [result(1, 0, steps=0)], num_draws=10)
