"""Guards how weight files, indexes, run folders and targets are put together, and what cannot be looked at at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tasks.checks.draft import check_draft
from tasks.checks.epochs import choose, choose_best, choose_newest_complete, read_run
from tasks.checks.rowcompare import to_bf16_bits, to_float32
from tasks.checks.scan import PIECE_BYTES
from tasks.checks.source import LocalFolder
from tasks.checks.verdict import Verdict
from tasks.checks.weights import INDEX_NAME
from tasks.errors import EvidenceError, RecipeError
from tests.cases.tiny import H, Raw, TinyDraft, V, bf16, draft_tensors, dump_safetensors, target_tensors, write_target

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def said(verdict: Verdict) -> str:
    return "\n".join(f"{fault.rule} {fault.severity} {fault.message}" for fault in verdict.faults)


def write_shards(folder: Path, tensors: dict[str, Raw]) -> dict[str, str]:
    """Write two shards and their index; return the weight map."""
    names = list(tensors)
    split = {name: ONE if at < len(names) // 2 else TWO for at, name in enumerate(names)}
    for shard in (ONE, TWO):
        part = {name: raw for name, raw in tensors.items() if split[name] == shard}
        (folder / shard).write_bytes(dump_safetensors(part))
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": split}))
    return split


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = TinyDraft().write(tmp_path / "draft")
    (folder / "model.safetensors").unlink()
    write_shards(folder, draft_tensors())
    return folder


def test_sharded_draft_passes(sharded: Path, tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(sharded), target=write_target(tmp_path / "target"))

    assert verdict.outcome == "PASS", said(verdict)
    assert set(verdict.facts["sha256"]) == {ONE, TWO}


def test_missing_shard_is_named(sharded: Path) -> None:
    (sharded / TWO).unlink()

    assert f"FIL001 error Weight files named in the index are missing: {TWO}" in said(check_draft(LocalFolder(sharded)))


def test_shard_without_its_tensor_and_with_another_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_NAME).read_text())
    index["weight_map"]["fc.weight"], index["weight_map"]["more.weight"] = TWO, TWO
    (sharded / INDEX_NAME).write_text(json.dumps(index))
    text = said(check_draft(LocalFolder(sharded), level="header"))

    assert "lacks what the index promises" in text
    assert "more.weight" in text


def test_broken_shard_fails_with_its_name(sharded: Path) -> None:
    (sharded / TWO).write_bytes((sharded / TWO).read_bytes()[:-10])

    assert f"FIL002 error {TWO} is not usable (truncated)" in said(check_draft(LocalFolder(sharded)))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"fc.weight": "../x.safetensors"}}', "no"])
def test_unusable_index_is_a_fault_of_its_own(sharded: Path, text: str) -> None:
    (sharded / INDEX_NAME).write_text(text)

    assert "FIL001 error" in said(check_draft(LocalFolder(sharded)))


def test_unindexed_file_beside_an_index_is_a_fault(sharded: Path) -> None:
    (sharded / "old.safetensors").write_bytes(dump_safetensors(draft_tensors()))

    assert "FIL003 error Weight files beside the index" in said(check_draft(LocalFolder(sharded)))


def test_sharded_and_tied_target_is_compared(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    (target / "model.safetensors").unlink()
    tensors = target_tensors()
    del tensors["lm_head.weight"]
    write_shards(target, tensors | {"model.other.weight": bf16((8, 8), 1)})

    verdict = check_draft(LocalFolder(TinyDraft().write(tmp_path / "draft")), target=target)

    assert verdict.outcome == "PASS", said(verdict)
    assert any(result.rule == "TGT003" and "all 160 rows" in result.message for result in verdict.results)
    # The tied target's head is its embedding, and the draft's head was another one.
    assert "TGT005 note" in said(verdict)


def test_two_tables_that_fit_are_refused_rather_than_guessed(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    tensors = target_tensors() | {"model.audio.embed_tokens.weight": bf16((V, H), 4)}
    (target / "model.safetensors").write_bytes(dump_safetensors(tensors))

    verdict = check_draft(LocalFolder(TinyDraft().write(tmp_path / "draft")), target=target)

    assert any("2 fit" in result.message for result in verdict.results if result.rule == "TGT003")


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_embedding_in_another_dtype_is_compared_by_value(dtype: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    theirs = target_tensors()["model.embed_tokens.weight"]
    values = to_float32(np.frombuffer(theirs.data, "<u2"), "BF16")
    stored = values.astype("<f4" if dtype == "F32" else "<f2")
    draft = TinyDraft()
    draft.tensors["embed_tokens.weight"] = Raw(dtype, (V, H), stored.tobytes())

    verdict = check_draft(LocalFolder(draft.write(tmp_path / "draft")), target=target)

    rows = next(result for result in verdict.results if result.rule == "TGT003")
    # bf16 values below the range of f16's normal numbers lose bits there; f32 holds all of them.
    assert rows.outcome == "pass" or dtype == "F16"
    assert "TEN008 warning" in said(verdict)


def test_bf16_rounding_is_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.4e38], dtype=np.float32)

    assert to_bf16_bits(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020, 0x7F80]


def test_values_beyond_the_first_piece_are_looked_at(tmp_path: Path) -> None:
    draft = TinyDraft()
    rows = PIECE_BYTES // (2 * H) + 100
    draft.decoder["intermediate_size"] = rows
    for name in ("gate_proj", "up_proj"):
        draft.tensors[f"layers.0.mlp.{name}.weight"] = bf16((rows, H), 3)
    raw = bf16((H, rows), 4)
    values = np.frombuffer(raw.data, "<u2").copy()
    values[-1] = 0x7FC0
    draft.tensors["layers.0.mlp.down_proj.weight"] = Raw("BF16", (H, rows), values.tobytes())

    assert "layers.0.mlp.down_proj.weight holds 1 NaN" in said(check_draft(LocalFolder(draft.write(tmp_path / "d"))))


def write_epoch(run: Path, name: str, *, loss: str = "", complete: bool = True) -> Path:
    draft = TinyDraft()
    if complete:
        draft.files["training_state.json"] = b'{"epoch": 0, "local_step": 0, "global_step": 9}'
        draft.files["optimizer_state_dict.pt"] = b"x"
    if loss:
        draft.files["val_metrics.json"] = f'{{"loss_epoch": {loss}}}'.encode()
    return draft.write(run / name)


def test_newest_and_best_are_chosen_among_complete_epochs_and_nan_never_wins(tmp_path: Path) -> None:
    for name, loss in (("0", "2.5"), ("1", "2.0"), ("2", ""), ("10", "NaN")):
        write_epoch(tmp_path, name, loss=loss)
    write_epoch(tmp_path, "11", complete=False)
    run = read_run(LocalFolder(tmp_path))

    assert [epoch.name for epoch in run.epochs] == ["0", "1", "2", "10", "11"]
    newest, best, chosen = choose_newest_complete(run.epochs), choose_best(run.epochs), choose(run)
    assert newest is not None and newest.name == "10"
    assert best is not None and best.name == "1"
    assert chosen is not None and chosen.name == "1"


def test_best_link_decides_over_the_losses(tmp_path: Path) -> None:
    write_epoch(tmp_path, "0", loss="2.0")
    write_epoch(tmp_path, "1", loss="3.0")
    (tmp_path / "checkpoint_best").symlink_to("1")

    verdict = check_draft(LocalFolder(tmp_path))

    assert verdict.facts["epoch"] == "1"
    assert verdict.outcome == "PASS", said(verdict)


def test_numbered_epoch_without_its_last_file_fails(tmp_path: Path) -> None:
    folder = write_epoch(tmp_path, "3", complete=False)
    copied = said(check_draft(LocalFolder(folder)))
    (folder / "optimizer_state_dict.pt").write_bytes(b"x")

    assert "TRN001 warning The save of epoch 3 was not finished" in copied
    assert "TRN001 error The save of epoch 3 was not finished" in said(check_draft(LocalFolder(folder)))


def test_interrupted_epoch_fails(tmp_path: Path) -> None:
    folder = write_epoch(tmp_path, "interrupted")

    assert "TRN001 error" in said(check_draft(LocalFolder(folder)))


def test_what_cannot_be_looked_at_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    draft = LocalFolder(TinyDraft().write(tmp_path / "draft"))
    with pytest.raises(EvidenceError, match="found nothing"):
        LocalFolder(tmp_path / "nowhere")
    with pytest.raises(EvidenceError, match="found a file"):
        LocalFolder(tmp_path / "draft" / "config.json")
    with pytest.raises(EvidenceError, match="target"):
        check_draft(draft, target=tmp_path)
    with pytest.raises(RecipeError, match="vllm-9"):
        check_draft(draft, engine="vllm-9")


def test_names_of_any_bytes_come_out_as_plain_text(tmp_path: Path) -> None:
    folder = TinyDraft().write(tmp_path / "draft")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\x1b[31m.pt")).write_bytes(b"x")

    verdict = check_draft(LocalFolder(folder))

    assert json.dumps(verdict.model_dump(mode="json")).isascii()
    assert all(result.message.isprintable() for result in verdict.results)
