"""Guards the questions asked before a draft is trained, and what a published draft's folder holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.drafting.publish import clean_config, write_draft_folder
from tasks.drafting.support import check_can_draft, default_layer_ids
from tasks.errors import EvidenceError, RecipeError
from tasks.recipe.sections import Draft

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "vocab_size": 160,
}
DRAFT_CONFIG: dict[str, Any] = {
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "norm_before_residual": True,
    "speculators_config": {"verifier": {"name_or_path": "/home/me/targets/tiny"}},
    "transformer_layer_config": {"hidden_size": 64},
}


def test_default_layers_lie_near_the_start_the_middle_and_the_end() -> None:
    assert default_layer_ids(30) == (2, 15, 27)
    assert default_layer_ids(8) == (2, 4, 5)
    with pytest.raises(RecipeError, match="too few"):
        default_layer_ids(7)


def test_a_flat_and_a_nested_target_pass() -> None:
    check_can_draft(TARGET, Draft(), 32, (2, 4, 8))
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {**TARGET, "architectures": None}}
    check_can_draft(nested, Draft(), 160, (0,))


@pytest.mark.parametrize(
    ("change", "draft_size", "layer_ids", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, 32, (2,), "architecture is MambaForCausalLM"),
        ({"architectures": None}, 32, (2,), "not named"),
        ({"hidden_size": None}, 32, (2,), "no positive hidden_size"),
        ({"vocab_size": True}, 32, (2,), "no positive vocab_size"),
        ({}, 161, (2,), "draft_size is 161"),
        ({}, 32, (2, 9), r"layer_ids holds \[9\]"),
        ({}, 32, (2, 2), "expected distinct"),
        ({}, 32, (), "at least one"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    change: dict[str, Any], draft_size: int, layer_ids: tuple[int, ...], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        check_can_draft({**TARGET, **change}, Draft(), draft_size, layer_ids)


def test_a_published_config_names_its_target_and_states_every_norm_flag() -> None:
    cleaned = clean_config(DRAFT_CONFIG, "owner/tiny")
    assert cleaned["speculators_config"]["verifier"]["name_or_path"] == "owner/tiny"
    assert {name: cleaned[name] for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")} == {
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
    }
    assert "auto_map" not in cleaned
    assert "num_aux_hidden_states" not in cleaned["transformer_layer_config"]
    assert DRAFT_CONFIG["speculators_config"]["verifier"]["name_or_path"] == "/home/me/targets/tiny"


def test_another_number_of_layers_is_declared_for_the_engine() -> None:
    cleaned = clean_config({**DRAFT_CONFIG, "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}, "tiny")
    assert cleaned["transformer_layer_config"]["num_aux_hidden_states"] == 4


@pytest.mark.parametrize("name", ["", " ", "/abs/path", "./here", "../up", "~/x", "C:\\models\\x", "s3://bucket/x"])
def test_a_draft_is_never_published_for_a_path(name: str) -> None:
    with pytest.raises(RecipeError, match="publish_as"):
        clean_config(DRAFT_CONFIG, name)


def test_a_config_that_is_no_drafts_is_refused() -> None:
    with pytest.raises(EvidenceError, match="EAGLE-3"):
        clean_config({"model_type": "llama"}, "tiny")


def test_a_published_folder_holds_config_and_weights_only(tmp_path: Path) -> None:
    epoch = tmp_path / "0"
    epoch.mkdir()
    (epoch / "config.json").write_text(json.dumps(DRAFT_CONFIG))
    for name in ("model.safetensors", "optimizer_state_dict.pt", "config.py", "train_command.txt"):
        (epoch / name).write_bytes(b"x")
    write_draft_folder(epoch, tmp_path / "draft", "tiny")
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == ["config.json", "model.safetensors"]
    (epoch / "model.safetensors").unlink()
    with pytest.raises(EvidenceError, match="cannot publish"):
        write_draft_folder(epoch, tmp_path / "again", "tiny")
