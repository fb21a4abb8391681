"""Guards the acceptance figures: one formula, pooled by hand-computed numbers, and never a NaN."""

import pytest

from tasks.bench.acceptance import macro_acceptance_length, pool, pool_datasets
from tasks.bench.measurement import (
    FORMULA,
    Acceptance,
    Arm,
    Measurement,
    PromptResult,
    PromptSetIdentity,
    Speed,
    parse_measurement,
    parse_results,
    results_to_jsonl,
)
from tasks.errors import EvidenceError


def result(prompt_id: str, histogram: tuple[int, ...], dataset: str = "service", **changes: int) -> PromptResult:
    fields = {
        "num_steps": sum(histogram),
        "num_accepted": sum(depth * count for depth, count in enumerate(histogram)),
        "completion_tokens": 20,
        "prompt_tokens": 7,
    }
    return PromptResult(
        prompt_id=prompt_id,
        dataset=dataset,
        histogram=histogram,
        latency_s=0.5,
        output_sha256="00",
        **(fields | changes),
    )


def test_pooling_weighs_steps_and_not_prompts() -> None:
    # 10 steps with 5 accepted (length 1.5) and 30 steps with 3 accepted (1.1): pooled 1 + 8 / 40, not their mean 1.3.
    found = pool([result("a", (6, 3, 1)), result("b", (28, 1, 1))], "service")
    assert (found.num_prompts, found.num_steps, found.num_accepted) == (2, 40, 8)
    assert found.acceptance_length == pytest.approx(1.2)


def test_positions_are_unconditional_and_sum_to_the_length() -> None:
    found = pool([result("a", (5, 2, 2, 1))], "service")
    assert found.per_position == pytest.approx((0.5, 0.3, 0.1))
    assert found.acceptance_length == pytest.approx(1 + sum(found.per_position))
    assert found.conditional == pytest.approx((0.5, 0.6, 1 / 3))


def test_conditional_rate_after_a_dead_position_is_none_and_not_nan() -> None:
    found = pool([result("a", (4, 0, 0))], "service")
    assert found.per_position == (0.0, 0.0)
    assert found.conditional == (0.0, None)
    assert "NaN" not in found.model_dump_json()


def test_histograms_of_different_width_pool() -> None:
    assert pool([result("a", (1, 1)), result("b", (0, 1, 1))], "x").per_position == pytest.approx((0.75, 0.25))


@pytest.mark.parametrize("histogram", [(), (0, 0, 0)])
def test_no_verify_step_is_refused(histogram: tuple[int, ...]) -> None:
    with pytest.raises(EvidenceError, match="no verify step in the 1 answers on data set 'service'"):
        pool([result("a", histogram)], "service")


@pytest.mark.parametrize("change", [{"num_steps": 11}, {"num_accepted": 4}])
def test_histogram_that_disagrees_with_its_totals_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(EvidenceError, match="prompt 'a' adds up to 10 steps and 5 accepted"):
        pool([result("a", (6, 3, 1), **change)], "service")


def test_parts_of_a_set_come_after_their_whole() -> None:
    found = pool_datasets(
        [result("a", (1, 1), "service"), result("b", (1, 0), "general/chat"), result("c", (0, 3), "general/code")]
    )
    assert [acceptance.dataset for acceptance in found] == ["service", "general", "general/chat", "general/code"]
    assert [acceptance.acceptance_length for acceptance in found] == pytest.approx([1.5, 1.75, 1.0, 2.0])


def test_macro_mean_gives_every_set_the_same_weight() -> None:
    big, small = pool([result("a", (100, 0))], "big"), pool([result("b", (0, 2))], "small")
    assert macro_acceptance_length([big, small]) == pytest.approx(1.5)
    with pytest.raises(EvidenceError, match="none was measured"):
        macro_acceptance_length([])


def measurement() -> Measurement:
    speed = Speed(arm="draft", concurrency=1, repeat=0, num_prompts=2, completion_tokens=40, wall_s=0.5, tok_per_s=80.0)
    draft = Arm(
        name="draft", fingerprint="ab", acceptance=(pool([result("a", (6, 3, 1))], "service"),), speeds=(speed,)
    )
    return Measurement(
        draft_tokens=2,
        temperature=0.0,
        max_tokens=20,
        arms=(draft,),
        engine={"vllm": "0.32.0"},
        prompt_sets={"service": PromptSetIdentity(sha256="51", count=1)},
    )


def test_measurement_survives_json_and_names_its_formula() -> None:
    text = measurement().model_dump_json()
    assert f'"formula":"{FORMULA}"' in text
    assert parse_measurement(text, "measurement.json") == measurement()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"acceptance_length":1.5', '"acceptance_length":NaN'),
        (FORMULA, "completion_tokens / steps"),
        ('"draft_tokens"', '"tokens"'),
        ("}", ""),
    ],
)
def test_a_damaged_measurement_is_refused_by_name(old: str, new: str) -> None:
    with pytest.raises(EvidenceError, match="measurement.json is not a measurement"):
        parse_measurement(measurement().model_dump_json().replace(old, new), "measurement.json")


def test_results_survive_json_lines_and_a_broken_line_is_named() -> None:
    results = (result("a", (6, 3, 1)), result("b", ()))
    text = results_to_jsonl(results)
    assert parse_results(text, "prompts.jsonl") == results
    with pytest.raises(EvidenceError, match="prompts.jsonl, line 3"):
        parse_results(text + "{}\n", "prompts.jsonl")


def test_arms_are_found_by_name() -> None:
    found = measurement().arm("draft")
    assert found is not None
    assert isinstance(found.acceptance_on("service"), Acceptance)
    assert found.acceptance_on("general") is None
    assert measurement().arm("baseline") is None
