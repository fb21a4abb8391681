"""Packed shards: many rows' hidden states in one safetensors file.

states-00000.safetensors holds  hidden_states [sum T, L, D] in the served dtype
                                token_ids     [sum T] int64
                                offsets       [rows + 1] int64, row r = offsets[r] : offsets[r + 1]
index.json                      {"layer_ids": [2, 15, 27, 30], "dtype": "BF16", "hidden_size": 576,
                                 "shards": [{"file": "states-00000.safetensors", "first_row": 0, "num_rows": 480}]}
Letters: T tokens, L captured layers (the final state last), D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.states.tensors import ITEM_BYTES, RawTensor, write_tensors

INDEX_NAME = "index.json"


@dataclass(frozen=True)
class Shard:
    """A run of rows that is stored together; known before any state is extracted."""

    number: int
    first_row: int
    num_rows: int

    @property
    def file(self) -> str:
        """Return the shard's file name."""
        return f"states-{self.number:05d}.safetensors"

    @property
    def rows(self) -> range:
        """Return the row numbers of the shard."""
        return range(self.first_row, self.first_row + self.num_rows)


def estimate_bytes(num_tokens: int, num_slots: int, hidden_size: int, dtype: str = "BF16") -> int:
    """Return the bytes that hidden states of so many tokens take."""
    return num_tokens * num_slots * hidden_size * ITEM_BYTES[dtype]


def plan_shards(row_tokens: Sequence[int], bytes_per_token: int, shard_bytes: int) -> list[Shard]:
    """Return the shards for rows of the given lengths, at most shard_bytes each unless a single row is more."""
    shards: list[Shard] = []
    first, held = 0, 0
    for row, num_tokens in enumerate(row_tokens):
        size = num_tokens * bytes_per_token
        if row > first and held + size > shard_bytes:
            shards.append(Shard(len(shards), first, row - first))
            first, held = row, 0
        held += size
    if len(row_tokens) > first:
        shards.append(Shard(len(shards), first, len(row_tokens) - first))
    return shards


def write_shard(path: Path, rows: Sequence[tuple[Sequence[int], RawTensor]]) -> None:
    """Write one shard. rows: (token ids [T], states [T, L, D]) in row order, one dtype."""
    lengths = [len(ids) for ids, _ in rows]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = np.concatenate([np.asarray(ids, dtype=np.int64) for ids, _ in rows])
    states = rows[0][1]
    total = int(offsets[-1])
    tensors = {
        "hidden_states": RawTensor(states.dtype, (total, *states.shape[1:]), b"".join(s.data for _, s in rows)),
        "token_ids": RawTensor("I64", (total,), ids.tobytes()),
        "offsets": RawTensor("I64", (len(rows) + 1,), offsets.tobytes()),
    }
    write_tensors(path, tensors, {"format": "draftworks-states-1"})
