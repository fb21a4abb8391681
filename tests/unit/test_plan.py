"""Guards identity: a change of anything makes exactly the artifacts downstream of it new."""

import pytest

from tasks.recipe.plan import STAGE_VERSIONS, PlanInputs, make_plan
from tasks.recipe.recipe import Recipe, parse_recipe

EVERYTHING = set(STAGE_VERSIONS)
FROM_MEASUREMENT = {"measurement", "package", "release"}
FROM_VERDICT = {"verdict", "package", "release"}
FROM_STATES = {"states", "draft", "verdict", *FROM_MEASUREMENT}
FROM_VOCABULARY = {"vocabulary", "draft", "verdict", *FROM_MEASUREMENT}
FROM_DRAFT = {"draft", "verdict", *FROM_MEASUREMENT}
NOTHING: set[str] = set()

RECIPE = parse_recipe(
    {
        "name": "one",
        "target": {"model": "t"},
        "prompts": {"source": "train.jsonl"},
        "benchmark": {"prompts": "held-out.jsonl"},
    },
    "test",
)
INPUTS = PlanInputs(
    target_identity="a" * 64,
    published_name="owner/target",
    end_of_turn_ids=(2,),
    layer_ids=(2, 15, 27),
    engine={"vllm": "0.32.0"},
    prompts_sha256="b" * 64,
    held_out_sha256="c" * 64,
    general_sha256=None,
)

# Every field of every section: another value, and the artifacts that it makes new.
FIELDS: dict[str, dict[str, tuple[object, set[str]]]] = {
    "target": {
        "model": ("u", NOTHING),  # the content identifies a target, not its place
        "revision": ("main", NOTHING),
        "publish_as": ("x/y", NOTHING),  # counted as published_name
        "trust_remote_code": (True, EVERYTHING),
    },
    "prompts": {
        "source": ("other.jsonl", NOTHING),  # the prompts' digest counts
        "system": ("Be brief.", EVERYTHING),
        "newest_files": (3, NOTHING),
        "limit": (5, EVERYTHING),
        "seed": (1, EVERYTHING),
    },
    "generation": {
        "endpoints": (("http://h/v1",), NOTHING),
        "max_tokens": (99, EVERYTHING),
        "temperature": (0.5, EVERYTHING),
        "top_p": (0.5, EVERYTHING),
        "seed": (1, EVERYTHING),
        "concurrency": (1, NOTHING),
        "shard_rows": (9, EVERYTHING),
        "max_failed_fraction": (0.5, NOTHING),
    },
    "extraction": {
        "layer_ids": ((1, 2, 3), NOTHING),  # the resolved layers count
        "concurrency": (1, NOTHING),
        "shard_mib": (9, FROM_STATES),
    },
    "vocabulary": {
        "draft_size": (64, FROM_VOCABULARY),
        "pinned_ids": ((5,), FROM_VOCABULARY),
        "pin_end_of_turn": (False, FROM_VOCABULARY),
    },
    "draft": {
        "algorithm": (None, NOTHING),  # there is one
        "decoder": ("qwen3", FROM_DRAFT),
        "num_layers": (2, FROM_DRAFT),
        "norm_before_residual": (False, FROM_DRAFT),
    },
    "training": {
        "epochs": (9, FROM_DRAFT),
        "learning_rate": (0.5, FROM_DRAFT),
        "ttt_steps": (2, FROM_DRAFT),
        "sequence_tokens": (64, FROM_DRAFT),
        "validation_fraction": (0.2, FROM_DRAFT),
        "warmup_fraction": (0.2, FROM_DRAFT),
        "seed": (1, FROM_DRAFT),
        "num_processes": (2, NOTHING),
        "warm_start": (None, NOTHING),  # refused for now
        "extra_args": ({"x": 1}, FROM_DRAFT),
        "deadline_minutes": (9.0, NOTHING),
    },
    "verification": {
        "level": ("header", FROM_VERDICT),
        "severities": ({"TEN009": "warning"}, FROM_VERDICT),
    },
    "benchmark": {
        "prompts": ("x.jsonl", NOTHING),  # the prompts' digest counts
        "general_prompts": ("y.jsonl", NOTHING),
        "limit": (3, FROM_MEASUREMENT),
        "max_tokens": (9, FROM_MEASUREMENT),
        "temperature": (0.5, FROM_MEASUREMENT),
        "draft_tokens": (2, FROM_MEASUREMENT),
        "concurrencies": ((2,), FROM_MEASUREMENT),
        "speed_prompts": (3, FROM_MEASUREMENT),
        "repeats": (2, FROM_MEASUREMENT),
    },
    "release": {"single_writer": (True, NOTHING)},
    "budget": {"store_gib": (9.0, NOTHING), "hours": (9.0, NOTHING)},
}


def changed(recipe: Recipe, inputs: PlanInputs) -> set[str]:
    before, after = make_plan(RECIPE, INPUTS), make_plan(recipe, inputs)
    return {kind for kind in STAGE_VERSIONS if before.fingerprint(kind) != after.fingerprint(kind)}


@pytest.mark.parametrize(
    ("section", "field", "value", "expected"),
    [(s, f, v, e) for s, fields in FIELDS.items() for f, (v, e) in fields.items() if v is not None],
)
def test_a_field_makes_new_exactly_what_it_shapes(section: str, field: str, value: object, expected: set[str]) -> None:
    part = getattr(RECIPE, section).model_copy(update={field: value})
    assert changed(RECIPE.model_copy(update={section: part}), INPUTS) == expected


def test_the_table_names_every_field() -> None:
    for section, fields in FIELDS.items():
        assert set(type(getattr(RECIPE, section)).model_fields) == set(fields), section
    assert set(Recipe.model_fields) == {*FIELDS, "name", "vllm"}


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"target_identity": "f" * 64}, EVERYTHING),
        ({"prompts_sha256": "f" * 64}, EVERYTHING),
        ({"engine": {"vllm": "0.33.0"}}, FROM_STATES),
        ({"layer_ids": (3, 15, 27)}, FROM_STATES),
        ({"end_of_turn_ids": (2, 7)}, FROM_VOCABULARY),
        ({"published_name": "x/y"}, FROM_DRAFT),
        ({"held_out_sha256": "f" * 64}, FROM_MEASUREMENT),
        ({"general_sha256": "f" * 64}, FROM_MEASUREMENT),
        ({"champion": "f" * 64}, FROM_MEASUREMENT),
    ],
)
def test_an_input_makes_new_exactly_what_it_shapes(update: dict[str, object], expected: set[str]) -> None:
    assert changed(RECIPE, INPUTS.model_copy(update=update)) == expected


def test_the_name_is_not_part_of_identity_and_vllm_arguments_are() -> None:
    assert changed(RECIPE.model_copy(update={"name": "two"}), INPUTS) == NOTHING
    assert changed(RECIPE.model_copy(update={"vllm": {"dtype": "float32"}}), INPUTS) == EVERYTHING
