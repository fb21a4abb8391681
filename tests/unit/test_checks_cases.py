"""Guards the verdict on every known input: the first line of its README, word for word where it asks for words."""

import json
import re
from pathlib import Path

import pytest

from tasks.checks.draft import check_draft
from tasks.checks.epochs import read_run
from tasks.checks.source import LocalFolder
from tasks.checks.target import find_embedding, read_target
from tasks.checks.verdict import Verdict

CASES = Path(__file__).resolve().parents[1] / "cases"
TARGET = CASES / "_target"
# What the message or the mend must say, where the README asks for words or the fault has a name.
WORDS = {
    "20-d2t-missing": ["d2t is missing"],
    "22-d2t-absolute": ["absolute ids, expected offsets"],
    "23-d2t-t2d-disagree": ["t2d and d2t disagree"],
    "26-t2d-tokenizer-length": ["[150]", "160"],
    "28-vocab-size-is-draft": ["it holds the draft's size"],
    "29-eos-not-in-draft-vocab": ["end-of-turn (id 2)"],
    "32-aux-four-layers": ["num_aux_hidden_states: 4 to transformer_layer_config"],
    "33-aux-ids-missing": ["[2, 3, 3]"],
    "34-embed-random": ["embed_tokens.weight are not the target's"],
    "35-nan-weights": ["lm_head.weight holds 1 NaN"],
    "36-missing-tensor": ["fc.weight is missing", "v_proj.weight is missing"],
    "38-tied-embeddings": ["tie_word_embeddings is true"],
    "39-model-type-mistral": ["mistral"],
    "41-narrow-draft-undeclared": ["target_hidden_size: 64"],
    "42-dtype-fp32-weights": ["BF16", "F32"],
    "44-corrupt-safetensors/empty": ["the file is empty"],
    "44-corrupt-safetensors/lfs-pointer": ["Git LFS pointer"],
    "44-corrupt-safetensors/truncated": ["128567 of 129344 bytes"],
    "46-verifier-path/worker-local-path": ["/model/from_s3"],
    "46-verifier-path/null": ["names no target"],
    "46-verifier-path/no-proposal-method": ["speculative_tokens is missing"],
    "65-nan-metrics": ["loss_epoch"],
}
NOT_A_DRAFT = ("25-", "43-", "47-", "55-", "_target")


def drafts() -> list[str]:
    """Return the cases whose README gives a verdict on one draft."""
    found: list[str] = []
    for folder in sorted(path for path in CASES.iterdir() if path.is_dir() and not path.name.startswith("__")):
        inner = [path for path in sorted(folder.iterdir()) if path.is_dir()]
        if (folder / "README").is_file() and not folder.name.startswith(NOT_A_DRAFT):
            found += [f"{folder.name}/{path.name}" for path in inner] or [folder.name]
    return [name for name in found if (CASES / name / "config.json").is_file() or name.startswith("65-")]


def expected_outcome(name: str) -> str:
    readme = CASES / name.split("/")[0] / "README"
    match = re.match(r"EXPECT: (PASS|WARN|FAIL)", readme.read_text().splitlines()[0])
    assert match, readme
    return match[1]


def said(verdict: Verdict) -> str:
    return "\n".join(f"{fault.message} {fault.mend}" for fault in verdict.faults)


@pytest.mark.parametrize("name", drafts())
def test_verdict_is_the_one_on_the_readmes_first_line(name: str) -> None:
    verdict = check_draft(LocalFolder(CASES / name), target=TARGET)

    assert verdict.outcome == expected_outcome(name), said(verdict)
    for words in WORDS.get(name, []):
        assert words in said(verdict)
    json.dumps(verdict.model_dump(mode="json"), allow_nan=False)


def test_all_known_drafts_are_among_the_cases() -> None:
    numbers = {name[:2] for name in drafts()}

    assert numbers >= {"00", "20", "22", "23", "26", "28", "29", "32", "33", "34", "35", "36", "38", "39", "41", "42"}
    assert numbers >= {"44", "46", "65"}


@pytest.mark.parametrize("level", ["header", "small", "full"])
def test_good_drafts_raise_no_false_alarm_at_any_level(level: str) -> None:
    for name in ("00-good", "32-aux-four-layers-declared"):
        for target in (None, TARGET):
            verdict = check_draft(LocalFolder(CASES / name), level=level, target=target)  # type: ignore[arg-type]
            assert verdict.outcome == "PASS", said(verdict)


def test_random_embedding_is_a_warning_when_the_embedding_was_trained(tmp_path: Path) -> None:
    source = CASES / "34-embed-random"
    config = json.loads((source / "config.json").read_text()) | {"embed_requires_grad": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())

    assert check_draft(LocalFolder(tmp_path), target=TARGET).outcome == "WARN"


def test_missing_layer_ids_are_a_warning_when_extraction_used_distinct_defaults(tmp_path: Path) -> None:
    target = json.loads((TARGET / "config.json").read_text()) | {"num_hidden_layers": 8}
    (tmp_path / "config.json").write_text(json.dumps(target))
    source = LocalFolder(CASES / "33-aux-ids-missing")

    known = check_draft(source, level="header", target=tmp_path, training_facts={"layer_ids": [2, 4, 5]})
    other = check_draft(source, level="header", target=tmp_path, training_facts={"layer_ids": [1, 4, 5]})

    assert (known.outcome, other.outcome) == ("WARN", "FAIL")


def test_partial_checkpoint_chooses_epoch_0_and_reports_epoch_1() -> None:
    verdict = check_draft(LocalFolder(CASES / "43-partial-checkpoint"), target=TARGET)

    assert verdict.facts["epoch"] == "0"
    assert verdict.outcome == "WARN"
    assert "Epoch 1 is incomplete" in said(verdict)


def test_best_link_is_resolved_and_a_dangling_link_fails() -> None:
    folder = LocalFolder(CASES / "55-best-symlink")
    run = read_run(folder)

    assert (run.best, run.dangling) == ("1", ("epoch7_end",))
    assert [epoch.name for epoch in run.epochs] == ["0", "1"]
    verdict = check_draft(folder, target=TARGET)
    assert verdict.outcome == "FAIL"
    assert "epoch7_end points at 7" in said(verdict)


def test_real_links_are_read_like_their_flattened_copies(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    for link, name in (("checkpoint_best", "1"), ("epoch0_end", "0"), ("epoch7_end", "7")):
        (tmp_path / link).symlink_to(name)
    run = read_run(LocalFolder(tmp_path))

    assert (run.best, run.dangling) == ("1", ("epoch7_end",))
    assert [epoch.name for epoch in run.epochs] == ["0", "1"]


@pytest.mark.parametrize("name", ["text_config", "language_model", "llm_config-plus-outer-vocab", "text_config-null"])
def test_nested_target_configs_are_resolved(name: str) -> None:
    target = read_target(CASES / "47-target-nested-config" / name, with_weights=False, with_tokenizer=False)

    assert [target.size(key) for key in ("vocab_size", "hidden_size", "num_hidden_layers")] == [160, 64, 6]
    assert target.end_ids == (2,)


@pytest.mark.parametrize("name", ["vl-keys", "mamba-keys"])
def test_target_embedding_is_chosen_by_name_and_shape(name: str, tmp_path: Path) -> None:
    source = CASES / "47-target-nested-config"
    config = json.loads((source / "text_config" / "config.json").read_text())
    config["text_config"]["hidden_size"] = 8
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((source / name / "model.safetensors").read_bytes())
    target = read_target(tmp_path, with_weights=True, with_tokenizer=False)

    assert find_embedding(target).shape == (160, 8)
