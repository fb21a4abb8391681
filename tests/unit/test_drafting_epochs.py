"""Guards which epochs of a run count as whole, which is chosen, and what a resumed training finds."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.drafting.epochs import choose_epoch, list_epochs, predicted_acceptance_length, remove_incomplete
from tasks.errors import EvidenceError


def write_epoch(run: Path, number: int, *full_acc: float) -> Path:
    folder = run / str(number)
    folder.mkdir(parents=True)
    save_file({"fc.weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    for name in ("config.json", "optimizer_state_dict.pt"):
        (folder / name).write_text("{}")
    (folder / "training_state.json").write_text(json.dumps({"epoch": number, "local_step": 0, "global_step": 1}))
    if full_acc:
        metrics = {f"full_acc_{step}_epoch": value for step, value in enumerate(full_acc)} | {"loss_epoch": 1.0}
        (folder / "val_metrics.json").write_text(json.dumps(metrics))
    return folder


def test_predicted_acceptance_length_counts_the_targets_own_token() -> None:
    assert predicted_acceptance_length({"full_acc_0": 0.5, "full_acc_1": 0.25, "cond_acc_0": 9.0}) == 1.75
    assert predicted_acceptance_length({"loss": 1.0}) is None


def test_the_best_epoch_is_the_highest_and_of_equals_the_later(tmp_path: Path) -> None:
    for number, shares in enumerate([(0.4, 0.2), (0.5, 0.1), (0.3, 0.1)]):
        write_epoch(tmp_path, number, *shares)
    assert choose_epoch(tmp_path).number == 1


def test_epochs_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    for number in (10, 9):
        write_epoch(tmp_path, number, 0.5)
    assert [epoch.number for epoch in list_epochs(tmp_path)] == [9, 10]
    assert choose_epoch(tmp_path).number == 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_never_wins(tmp_path: Path, bad: float) -> None:
    write_epoch(tmp_path, 0, 0.1)
    write_epoch(tmp_path, 1, bad, 0.9)
    write_epoch(tmp_path, 2)
    assert choose_epoch(tmp_path).number == 0


@pytest.mark.parametrize("missing", ["training_state.json", "model.safetensors", "optimizer_state_dict.pt"])
def test_an_epoch_without_a_file_is_incomplete_and_says_which(tmp_path: Path, missing: str) -> None:
    (write_epoch(tmp_path, 0, 0.5) / missing).unlink()
    (epoch,) = list_epochs(tmp_path)
    assert epoch.problem == f"{missing} missing"
    with pytest.raises(EvidenceError, match=f"epoch 0: {missing} missing"):
        choose_epoch(tmp_path)


@pytest.mark.parametrize("change", [b"", b"\xff" * 8, "cut", "longer"])
def test_weights_of_another_length_than_their_header_says_are_incomplete(tmp_path: Path, change: bytes | str) -> None:
    weights = write_epoch(tmp_path, 0, 0.5) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes({"cut": whole[:-1], "longer": whole + b"\0"}.get(change, change))  # type: ignore[call-overload]
    assert list_epochs(tmp_path)[0].problem is not None


def test_incomplete_epochs_are_removed_before_a_training_resumes(tmp_path: Path) -> None:
    write_epoch(tmp_path, 0, 0.5)
    (write_epoch(tmp_path, 1) / "training_state.json").write_text('{"epo')
    (tmp_path / "checkpoint_best").symlink_to("1")
    assert [epoch.number for epoch in remove_incomplete(tmp_path)] == [1]
    assert [epoch.number for epoch in list_epochs(tmp_path)] == [0]


def test_a_folder_without_epochs_has_none(tmp_path: Path) -> None:
    assert list_epochs(tmp_path / "absent") == ()
    with pytest.raises(EvidenceError, match="no epoch to choose"):
        choose_epoch(tmp_path)
