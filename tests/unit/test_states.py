"""Guards hidden states: content is checked, not file names; shards hold exactly the rows they say."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tasks.drafting.packed import read_index
from tasks.errors import EvidenceError
from tasks.states.content import ExpectedStates, check_states
from tasks.states.packing import INDEX_NAME, plan_shards, write_shard
from tasks.states.tensors import RawTensor, read_tensors, write_tensors

CASES = Path(__file__).parents[1] / "cases"
EXPECTED = ExpectedStates(num_slots=4, hidden_size=64)


def checked(case: str) -> RawTensor:
    folder = CASES / case
    row = json.loads((folder / "rows.jsonl").read_text().splitlines()[0])
    return check_states(read_tensors(folder / "hs_0.safetensors"), row["input_ids"], EXPECTED)


def good() -> tuple[dict[str, RawTensor], list[int]]:
    folder = CASES / "10-hs-good"
    row = json.loads((folder / "rows.jsonl").read_text().splitlines()[0])
    return read_tensors(folder / "hs_0.safetensors"), row["input_ids"]


def test_a_good_file_passes() -> None:
    assert checked("10-hs-good").shape == (10, 4, 64)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("11-hs-short", "switch prefix caching off"),
        ("12-hs-nan", "NaN or infinite values, first at token"),
        ("14-hs-axis-order", "axes are in another order"),
    ],
)
def test_a_bad_file_is_named(case: str, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        checked(case)


def test_a_dead_slot_and_a_missing_slot_are_seen() -> None:
    tensors, ids = good()
    values = np.frombuffer(tensors["hidden_states"].data, np.uint16).reshape(10, 4, 64).copy()
    values[:, 1] = 0
    dead = RawTensor("BF16", (10, 4, 64), values.tobytes())
    with pytest.raises(EvidenceError, match="slot 1 is constant"):
        check_states({**tensors, "hidden_states": dead}, ids, EXPECTED)
    fewer = RawTensor("BF16", (10, 3, 64), values[:, :3].tobytes())
    with pytest.raises(EvidenceError, match="other layers"):
        check_states({**tensors, "hidden_states": fewer}, ids, EXPECTED)


def test_states_of_another_request_are_refused() -> None:
    tensors, ids = good()
    swapped = [*ids]
    swapped[3] += 1
    with pytest.raises(EvidenceError, match="position 3 is"):
        check_states(tensors, swapped, EXPECTED)
    with pytest.raises(EvidenceError, match="lacks token_ids"):
        check_states({"hidden_states": tensors["hidden_states"]}, ids, EXPECTED)


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_cut_file_is_no_states(tmp_path: Path, cut: int) -> None:
    blob = (CASES / "10-hs-good" / "hs_0.safetensors").read_bytes()
    (tmp_path / "hs").write_bytes(blob[:cut])
    with pytest.raises(EvidenceError):
        read_tensors(tmp_path / "hs")


def test_shards_are_planned_by_size_and_cover_every_row_once() -> None:
    shards = plan_shards([10, 10, 10, 50, 1], bytes_per_token=1, shard_bytes=25)
    assert [(s.first_row, s.num_rows) for s in shards] == [(0, 2), (2, 1), (3, 1), (4, 1)]
    assert plan_shards([], 1, 25) == []


def test_a_shard_is_read_back_by_the_official_reader_and_by_the_trainer(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = []
    for length in (3, 5):
        values = generator.integers(0, 2**15, (length, 4, 8), dtype=np.uint16)
        rows.append((list(range(length)), RawTensor("BF16", values.shape, values.tobytes())))
    write_shard(tmp_path / "states-00000.safetensors", rows)
    with safe_open(tmp_path / "states-00000.safetensors", "np") as file:
        assert file.get_tensor("offsets").tolist() == [0, 3, 8]
        assert file.get_tensor("token_ids").tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
        assert file.get_slice("hidden_states").get_shape() == [8, 4, 8]
    stored = read_tensors(tmp_path / "states-00000.safetensors")["hidden_states"].data
    assert stored == rows[0][1].data + rows[1][1].data
    index = {"shards": [{"file": "states-00000.safetensors", "first_row": 0, "num_rows": 2}]}
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    assert [shard.end_row for shard in read_index(tmp_path)] == [2]


def test_tensors_are_written_as_safetensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {"a": RawTensor("I64", (2,), np.arange(2).tobytes())}, {"format": "x"})
    with safe_open(tmp_path / "t", "np") as file:
        assert file.metadata() == {"format": "x"}
        assert file.get_tensor("a").tolist() == [0, 1]
