"""Guards that a training folder holds exactly the rows whose hidden states were extracted."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

from tasks.drafting.dataset import split_row, write_training_folder
from tasks.drafting.packed import read_index
from tasks.errors import EvidenceError, RecipeError

ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [3]]
MASK = [[0, 1, 1], [0, 1], [0, 0, 1, 1], [1]]


def write_states(folder: Path, rows: list[list[int]], shard_rows: int = 3) -> Path:
    folder.mkdir()
    shards = []
    for first in range(0, len(rows), shard_rows):
        part = rows[first : first + shard_rows]
        ids = np.concatenate([np.array(row, np.int64) for row in part])
        tensors = {
            "hidden_states": np.zeros((len(ids), 4, 8), np.float16),
            "token_ids": ids,
            "offsets": np.cumsum([0] + [len(row) for row in part]),
        }
        save_file(tensors, folder / f"states-{len(shards):05}.safetensors")
        shards.append({"file": f"states-{len(shards):05}.safetensors", "first_row": first, "num_rows": len(part)})
    (folder / "index.json").write_text(json.dumps({"shards": shards}))
    return folder


def table(rows: list[list[int]], mask: list[list[int]]) -> pa.Table:
    parts = [pa.table({"input_ids": rows[i : i + 3], "loss_mask": mask[i : i + 3]}) for i in range(0, len(rows), 3)]
    return pa.concat_tables(parts)


def test_rows_are_written_in_order_and_counted(tmp_path: Path) -> None:
    data = write_training_folder(tmp_path / "d", table(ROWS, MASK), write_states(tmp_path / "s", ROWS), 0.25)
    assert (data.num_rows, data.num_tokens, data.num_supervised) == (4, 10, 6)
    assert (data.num_validation_rows, data.longest_row_tokens) == (1, 4)
    with pa.ipc.open_stream(next((tmp_path / "d").glob("*.arrow"))) as stream:
        written = stream.read_all().to_pydict()
    assert written == {"input_ids": ROWS, "loss_mask": MASK, "seq_len": [3, 2, 4, 1]}
    assert json.loads((tmp_path / "d" / "state.json").read_text())["_format_type"] == "torch"


def test_states_of_other_tokens_are_named_by_row_and_position(tmp_path: Path) -> None:
    states = write_states(tmp_path / "s", [[1, 2, 3], [4, 5], [6, 7, 1, 9], [3]])
    with pytest.raises(EvidenceError, match=r"row 2: states-00000\.safetensors .* from position 2 on"):
        write_training_folder(tmp_path / "d", table(ROWS, MASK), states, 0.25)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("rows", [ROWS[:3], [*ROWS, [1]], [ROWS[1], ROWS[0], *ROWS[2:]], [[1, 2], *ROWS[1:]]])
def test_rows_that_are_missing_added_swapped_or_cut_are_refused(tmp_path: Path, rows: list[list[int]]) -> None:
    with pytest.raises(EvidenceError, match="extract again"):
        write_training_folder(tmp_path / "d", table(ROWS, MASK), write_states(tmp_path / "s", rows), 0.25)


@pytest.mark.parametrize("value", [0, 1])
def test_nothing_or_everything_supervised_is_refused(tmp_path: Path, value: int) -> None:
    mask = [[value] * len(row) for row in ROWS]
    with pytest.raises(EvidenceError, match="are supervised"):
        write_training_folder(tmp_path / "d", table(ROWS, mask), write_states(tmp_path / "s", ROWS), 0.25)


def test_a_mask_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="row 1 of the corpus has 2 tokens but 1 mask values"):
        states = write_states(tmp_path / "s", ROWS)
        write_training_folder(tmp_path / "d", table(ROWS, [MASK[0], [1], *MASK[2:]]), states, 0.25)


def test_both_splits_need_a_row() -> None:
    assert split_row(480, 0.1) == 432
    with pytest.raises(RecipeError, match="validation_fraction"):
        split_row(1, 0.1)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"shards": []}', '{"shards": [{"file": "a"}]}'])
def test_a_broken_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(EvidenceError):
        read_index(tmp_path)


def test_an_index_must_cover_every_row_with_files_that_are_there(tmp_path: Path) -> None:
    states = write_states(tmp_path / "s", ROWS)
    assert [(shard.first_row, shard.end_row) for shard in read_index(states)] == [(0, 3), (3, 4)]
    (states / "states-00001.safetensors").unlink()
    with pytest.raises(EvidenceError, match="not in"):
        read_index(states)
    shards = [{"file": "states-00000.safetensors", "first_row": 1, "num_rows": 3}]
    (states / "index.json").write_text(json.dumps({"shards": shards}))
    with pytest.raises(EvidenceError, match="expected row 0"):
        read_index(states)
