"""The data folder that speculators' trainer reads, written from corpus rows and checked against the hidden states.

Rows keep their order: speculators takes the last rows for validation, so they must have been shuffled once before.
Columns: input_ids, loss_mask (1 = the draft learns to predict this token), seq_len.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import safe_open

from tasks.drafting.packed import PackedShard, read_index
from tasks.errors import EvidenceError, RecipeError


@dataclass(frozen=True)
class TrainingData:
    """What lies in a training folder."""

    num_rows: int
    num_tokens: int
    num_supervised: int
    num_validation_rows: int
    longest_row_tokens: int
    """The trainer cuts rows that are longer than its sequence length."""


def split_row(num_rows: int, validation_fraction: float) -> int:
    """Return the first validation row, as speculators computes it. Raises RecipeError when a side would be empty."""
    first = int(num_rows * training_ratio(validation_fraction))
    if not 0 < first < num_rows:
        raise RecipeError(
            f"validation_fraction {validation_fraction} of {num_rows} rows leaves {first} for training and "
            f"{num_rows - first} for validation; both need at least one. Use more prompts."
        )
    return first


def training_ratio(validation_fraction: float) -> float:
    """Return the share of training rows as it is written on the command line."""
    return round(1.0 - validation_fraction, 6)


def write_training_folder(folder: Path, rows: pa.Table, states: Path, validation_fraction: float) -> TrainingData:
    """Write rows (columns input_ids and loss_mask) for the trainer and return what was written.

    states: folder of packed hidden states with the same rows in the same order.
    Raises EvidenceError: a row without its states, other tokens, or nothing (or everything) supervised.
    """
    ids = _as_lists(rows, "input_ids", pa.int32())
    mask = _as_lists(rows, "loss_mask", pa.int8())
    offsets = np.asarray(ids.offsets)
    if not np.array_equal(offsets, np.asarray(mask.offsets)):
        row = int(np.argmax(np.diff(offsets) != np.diff(np.asarray(mask.offsets))))
        raise EvidenceError(f"row {row} of the corpus has {len(ids[row])} tokens but {len(mask[row])} mask values")
    first_validation_row = split_row(len(ids), validation_fraction)
    _require_same_tokens(np.asarray(ids.values), offsets, read_index(states))
    num_supervised = int(np.count_nonzero(np.asarray(mask.values)))
    if num_supervised in (0, int(offsets[-1])):
        raise EvidenceError(
            f"{num_supervised} of {offsets[-1]} corpus tokens are supervised; expected the answers, and not the prompts"
        )
    _save(folder, ids, mask)
    longest = int(np.diff(offsets).max())
    return TrainingData(len(ids), int(offsets[-1]), num_supervised, len(ids) - first_validation_row, longest)


def _as_lists(rows: pa.Table, name: str, value_type: pa.DataType) -> pa.LargeListArray:
    """Return one array whose offsets start at 0 and cannot overflow."""
    column = rows.column(name)
    if column.null_count:
        raise EvidenceError(f"{column.null_count} corpus rows have no {name}")
    lists = column.cast(pa.large_list(value_type)).combine_chunks()
    lists = lists if isinstance(lists, pa.LargeListArray) else pa.concat_arrays(lists.chunks)
    values = lists.flatten()
    offsets = pa.array(np.asarray(lists.offsets) - lists.offsets[0].as_py(), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values)


def _require_same_tokens(ids: NDArray[np.int32], offsets: NDArray[np.int64], shards: tuple[PackedShard, ...]) -> None:
    num_rows = len(offsets) - 1
    if shards[-1].end_row != num_rows:
        raise EvidenceError(f"the corpus has {num_rows} rows, the hidden states {shards[-1].end_row}; extract again")
    for shard in shards:
        with safe_open(shard.file, framework="np") as file:
            shard_offsets, shard_ids = file.get_tensor("offsets"), file.get_tensor("token_ids")
        expected = offsets[shard.first_row : shard.end_row + 1]
        begin, end = int(expected[0]), int(expected[-1])
        if np.array_equal(shard_offsets, expected - begin) and np.array_equal(shard_ids, ids[begin:end]):
            continue
        raise EvidenceError(_first_difference(shard, shard_offsets, shard_ids, ids[begin:end], expected - begin))


def _first_difference(
    shard: PackedShard,
    shard_offsets: NDArray[np.int64],
    shard_ids: NDArray[np.int64],
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
) -> str:
    for row in range(shard.num_rows):
        stored = shard_ids[shard_offsets[row] : shard_offsets[row + 1]]
        wanted = ids[offsets[row] : offsets[row + 1]]
        if not np.array_equal(stored, wanted):
            same = min(len(stored), len(wanted))
            differs = np.flatnonzero(stored[:same] != wanted[:same])
            position = int(differs[0]) if len(differs) else same
            return (
                f"row {shard.first_row + row}: {shard.file.name} holds the states of other tokens, from position "
                f"{position} on ({len(stored)} tokens stored, {len(wanted)} in the corpus); extract again"
            )
    return f"{shard.file.name} holds {len(shard_offsets) - 1} rows; the index says {shard.num_rows}"


def _save(folder: Path, ids: pa.LargeListArray, mask: pa.LargeListArray) -> None:
    import datasets

    lengths = pa.array(np.diff(np.asarray(ids.offsets)), pa.int64())
    table = pa.table({"input_ids": ids, "loss_mask": mask, "seq_len": lengths})
    datasets.disable_progress_bars()
    datasets.Dataset(table).with_format("torch").save_to_disk(str(folder))
