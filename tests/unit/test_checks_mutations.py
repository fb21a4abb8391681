"""Guards every rule: a good tiny draft passes; one change at a time is found, by the right rule, at its severity."""

import json
from pathlib import Path

import pytest

from tasks.checks.draft import check_draft
from tasks.checks.rules import RULES
from tasks.checks.source import LocalFolder
from tasks.checks.verdict import Verdict
from tasks.errors import RecipeError
from tests.cases.good import good_drafts
from tests.cases.mutations import MUTATIONS, Mutation
from tests.cases.tiny import D, H, Raw, TinyDraft, bf16, target_config, to_plain, write_target

# Rules whose faults need more than a changed draft; each has tests of its own.
ELSEWHERE = {"AUX004", "FIL001", "FIL002", "TEN009", "TEN012", "TGT001", "TGT005", "TRN003"}
CASES = Path(__file__).resolve().parents[1] / "cases"
NAMES = [mutation.name for mutation in MUTATIONS]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


def faults(verdict: Verdict) -> dict[str, str]:
    return {fault.rule: fault.severity for fault in verdict.faults if fault.severity != "note"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_one_change_is_found_by_its_rule(mutation: Mutation, target: Path, tmp_path: Path) -> None:
    draft = TinyDraft()
    mutation.change(draft)

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")), target=target)

    assert verdict.outcome == mutation.outcome, verdict.faults
    assert mutation.rule in faults(verdict), verdict.faults
    assert mutation.words in "\n".join(f"{fault.message} {fault.mend}" for fault in verdict.faults)


def test_every_rule_is_broken_by_some_mutation_or_elsewhere() -> None:
    assert {rule.id for rule in RULES} == {mutation.rule for mutation in MUTATIONS} | ELSEWHERE
    assert len(set(NAMES)) == len(NAMES)


def test_rule_ids_are_unique_and_their_docstrings_open_with_them() -> None:
    ids = [rule.id for rule in RULES]

    assert len(set(ids)) == len(ids)
    for rule in RULES:
        assert (rule.judge.__doc__ or "").startswith(f"{rule.id}: ")


@pytest.mark.parametrize("name", list(good_drafts()))
def test_good_draft_passes_without_a_loud_fault(name: str, target: Path, tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(good_drafts()[name].write(tmp_path / "draft")), target=target)

    assert verdict.outcome == "PASS", verdict.faults
    assert faults(verdict) == {}


def test_original_eagle_layout_without_ids_and_flags_is_a_warning(tmp_path: Path) -> None:
    draft = to_plain(TinyDraft())
    for key in ("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        del draft.config[key]
    deep = write_target(tmp_path / "deep")
    (deep / "config.json").write_text(json.dumps(target_config() | {"num_hidden_layers": 30}))

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")), target=deep)

    assert verdict.outcome == "WARN", verdict.faults
    assert faults(verdict) == {"AUX001": "warning"}
    assert any("SGLang" in result.message for result in verdict.results)


def test_narrow_draft_that_declares_the_targets_width_passes(tmp_path: Path) -> None:
    source = CASES / "41-narrow-draft-undeclared"
    config = json.loads((source / "config.json").read_text()) | {"target_hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())

    assert check_draft(LocalFolder(tmp_path), target=CASES / "_target").outcome == "PASS"


def test_another_algorithm_is_named_once_and_not_judged_by_the_rules_of_this_one(tmp_path: Path) -> None:
    draft = TinyDraft()
    draft.config["speculators_model_type"] = "dflash"
    del draft.config["eagle_aux_hidden_state_layer_ids"], draft.tensors["fc.weight"]

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")))

    assert faults(verdict) == {"CFG004": "error"}


def test_quantised_draft_is_a_warning_and_its_shapes_are_not_judged(tmp_path: Path) -> None:
    draft = TinyDraft()
    draft.decoder["quantization_config"] = {"quant_method": "compressed-tensors"}
    draft.tensors["fc.weight"] = Raw("F8_E4M3", (H, 3 * H), bytes(H * 3 * H))
    draft.tensors["fc.weight_scale"] = Raw("F32", (1,), bytes(4))

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")), level="header")

    assert verdict.outcome == "WARN", verdict.faults
    assert any(line.startswith("TEN003") for line in verdict.not_checked)


def test_level_reads_no_deeper_than_it_says_and_names_what_it_left_out(tmp_path: Path) -> None:
    folder = TinyDraft().write(tmp_path / "draft")

    header = check_draft(LocalFolder(folder), level="header")
    full = check_draft(LocalFolder(folder), level="full")

    assert any(line.startswith("VOC003") for line in header.not_checked)
    assert any(line.startswith("TGT003") and "no target" in line for line in full.not_checked)
    assert "sha256" in full.facts
    assert "sha256" not in header.facts


def test_severity_can_be_changed_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    draft = TinyDraft()
    draft.config["speculators_config"]["verifier"] = None
    source = LocalFolder(draft.write(tmp_path / "draft"))

    assert check_draft(source, level="header").outcome == "FAIL"
    assert check_draft(source, level="header", severities={"CFG007": "warning"}).outcome == "WARN"
    with pytest.raises(RecipeError, match="CFG999"):
        check_draft(source, level="header", severities={"CFG999": "warning"})


def test_layer_ids_are_compared_with_those_of_the_extraction(tmp_path: Path) -> None:
    source = LocalFolder(TinyDraft().write(tmp_path / "draft"))

    same = check_draft(source, level="header", training_facts={"layer_ids": [2, 3, 4]})
    other = check_draft(source, level="header", training_facts={"layer_ids": [1, 3, 4]})

    assert (same.outcome, other.outcome) == ("PASS", "FAIL")
    assert "Trained on layers [1, 3, 4]" in other.faults[0].message


def test_same_bytes_as_the_epoch_before_are_a_warning(tmp_path: Path) -> None:
    source = LocalFolder(TinyDraft().write(tmp_path / "draft"))
    sha256 = check_draft(source).facts["sha256"]["model.safetensors"]

    assert check_draft(source, training_facts={"previous_sha256": sha256}).outcome == "WARN"


def test_target_without_eagle3_is_an_error_and_an_unknown_class_a_warning(tmp_path: Path) -> None:
    source = LocalFolder(TinyDraft().write(tmp_path / "draft"))
    outcomes = []
    for name in ("LlamaForCausalLM", "BloomForCausalLM", "BrandNewForCausalLM"):
        folder = write_target(tmp_path / name)
        text = (folder / "config.json").read_text().replace("LlamaForCausalLM", name)
        (folder / "config.json").write_text(text)
        verdict = check_draft(source, target=folder, severities={"TGT004": "note"})
        outcomes.append(verdict.outcome)

    assert outcomes == ["PASS", "FAIL", "WARN"]


def test_trained_head_is_only_noted(target: Path, tmp_path: Path) -> None:
    draft = TinyDraft()
    draft.tensors["lm_head.weight"] = bf16((D, H), 77)

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")), target=target)

    assert verdict.outcome == "PASS"
    assert "TGT005" in [fault.rule for fault in verdict.faults]
