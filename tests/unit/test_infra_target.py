"""Guards the demo's target: a folder counts as done only with every file and every byte of its weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from infra.target import FILES, NAME, WEIGHTS, ensure_target, is_complete


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / NAME
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(json.dumps({"file": name}))
    save_file({"weight": np.ones((4, 8), dtype=np.float32)}, folder / WEIGHTS)
    return folder


def test_a_complete_folder_is_used_as_it_is(folder: Path) -> None:
    assert is_complete(folder)
    before = (folder / WEIGHTS).stat().st_mtime_ns
    assert ensure_target(folder.parent) == folder
    assert (folder / WEIGHTS).stat().st_mtime_ns == before


@pytest.mark.parametrize("name", [*FILES, WEIGHTS])
def test_a_missing_or_empty_file_is_noticed(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    assert not is_complete(folder)
    (folder / name).unlink()
    assert not is_complete(folder)


@pytest.mark.parametrize("kept_bytes", [4, 20, -1])
def test_truncated_weights_are_noticed(folder: Path, kept_bytes: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert not is_complete(folder)


def test_no_folder_is_not_complete(tmp_path: Path) -> None:
    assert not is_complete(tmp_path / NAME)
