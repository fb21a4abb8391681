"""Guards recipes: shipped ones load, a wrong one is refused with every field named, no key of ours slips into vLLM."""

from pathlib import Path

import pytest

from tasks.errors import EvidenceError, RecipeError
from tasks.recipe.recipe import Recipe, load_recipe, parse_recipe
from tasks.recipe.sections import Target
from tasks.recipe.settings import PROJECT_ROOT, Settings
from tasks.recipe.target import champion_name, resolve_target, target_identity, text_config

RECIPES = sorted((PROJECT_ROOT / "deployments" / "recipes").glob("*.toml"))
CASES = Path(__file__).parents[1] / "cases"
SMALL = {
    "name": "small",
    "target": {"model": "some-target"},
    "prompts": {"source": "train.jsonl"},
    "benchmark": {"prompts": "held-out.jsonl"},
}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path) -> None:
    assert load_recipe(path).name


def test_every_field_is_explained() -> None:
    def unexplained(model: type, where: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and hasattr(inner, "model_fields"):
                found += unexplained(inner, f"{where}{name}.")
            elif not field.description:
                found.append(where + name)
        return found

    assert unexplained(Recipe, "") == []


def test_relative_prompt_paths_start_at_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        'name = "r"\n[target]\nmodel = "m"\n[prompts]\nsource = "a.jsonl"\n[benchmark]\nprompts = "s3://b/held-out"\n'
    )
    recipe = load_recipe(path)
    assert recipe.prompts.source == str(tmp_path / "a.jsonl")
    assert recipe.benchmark.prompts == "s3://b/held-out"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"training": {"epoch": 3}}, "training.epoch"),
        ({"colour": "red"}, "colour"),
        ({"name": "Not A Name"}, "name"),
        ({"benchmark": {"prompts": "train.jsonl"}}, "training set"),
        ({"vllm": {"port": 8000}}, "port"),
        ({"vllm": {"speculative-config": "{}"}}, "speculative_config"),
        ({"vllm": {"max_model_len": 128}, "generation": {"max_tokens": 200}}, "max_model_len"),
        ({"training": {"learning_rate": -1}}, "training.learning_rate"),
        ({"extraction": {"layer_ids": [2, 2]}}, "twice"),
        ({"benchmark": {"prompts": "h.jsonl", "concurrencies": [1, 1]}}, "concurrencies"),
        ({"training": {"warm_start": True}}, "warm_start"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        parse_recipe({**SMALL, **change}, "this recipe")


def test_a_recipe_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("name = [")
    with pytest.raises(RecipeError, match="not TOML"):
        load_recipe(tmp_path / "broken.toml")


def test_a_missing_target_says_where_it_was_looked_for(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(RecipeError, match=str(tmp_path / "targets" / "nothing-here")):
        resolve_target(Target(model="nothing-here"), settings)


def test_a_target_resolves_with_its_flat_config() -> None:
    target = resolve_target(Target(model=str(CASES / "_target")), Settings())
    assert (target.vocab_size, target.hidden_size, target.num_layers) == (160, 64, 6)
    assert target.published_name == "_target"


def test_one_tokenizer_byte_makes_another_target(tmp_path: Path) -> None:
    for file in (CASES / "_target").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    before = target_identity(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("w10", "w1O", 1))
    assert target_identity(tmp_path) != before


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_model"])
def test_a_nested_language_model_wins_over_outer_keys(key: str) -> None:
    assert text_config({"vocab_size": 999, "vision_config": {"vocab_size": 7}, key: {"vocab_size": 160}}) == {
        "vocab_size": 160
    }


def test_null_is_no_nested_model_and_two_are_refused() -> None:
    assert text_config({"text_config": None, "vocab_size": 160})["vocab_size"] == 160
    with pytest.raises(EvidenceError, match="several language models"):
        text_config({"text_config": {}, "llm_config": {}})


def test_champion_names_are_safe_and_differ_by_identity() -> None:
    assert champion_name("Qwen/Qwen3-8B", "ab" * 32) == "qwen-qwen3-8b-abababababab"
    assert champion_name("Qwen/Qwen3-8B", "cd" * 32) != champion_name("Qwen/Qwen3-8B", "ab" * 32)
