"""Comparing rows of a draft's embedding or head with the target's, as bytes where the dtypes agree.

Legend: N rows in one piece, D hidden size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.checks.header import ITEM_BYTES, Tensor
from tasks.checks.source import ByteSource

UNSIGNED = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
# Rows up to this far apart are read together, in blocks of at most BLOCK_BYTES.
NEAR_ROWS = 16
BLOCK_BYTES = 8 * 2**20
FLOATS = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows were compared and how many differ."""

    num_rows: int
    num_different: int
    first_different: int | None


def to_float32(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Return the values of float bit patterns; dtype is the safetensors name."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F16":
        return bits.view("<f2").astype(np.float32)
    if dtype == "F32":
        return bits.view("<f4")
    with np.errstate(over="ignore"):
        return bits.view("<f8").astype(np.float32)


def to_bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return bfloat16 patterns, rounded to nearest even as torch does."""
    bits = values.view(np.uint32)
    rounding = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


@dataclass
class RowCompare:
    """Counts the rows of a draft tensor that are not the target's rows.

    rows: row i of the draft must be row rows[i] of the target; None means row i.
    """

    source: ByteSource
    table: Tensor
    rows: NDArray[np.int64] | None = None
    _seen: int = 0
    _different: int = 0
    _first: int | None = None

    def add(self, tensor: Tensor, offset: int, data: memoryview) -> None:
        """Compare one piece of the draft tensor; offset is in bytes from its start, at a row's start."""
        width = tensor.shape[1]
        first = offset // (width * ITEM_BYTES[tensor.dtype])
        mine_ND = np.frombuffer(data, dtype=UNSIGNED[ITEM_BYTES[tensor.dtype]]).reshape(-1, width)
        theirs_ND = self._target_rows(first, len(mine_ND))
        self._seen += len(mine_ND)
        if tensor.dtype == self.table.dtype and theirs_ND.tobytes() == data:
            return
        mine_ND = _comparable(mine_ND, tensor.dtype, self.table.dtype)
        where = np.flatnonzero((mine_ND != _other(theirs_ND, self.table.dtype, tensor.dtype)).any(axis=1))
        self._different += len(where)
        if len(where) and self._first is None:
            self._first = first + int(where[0])

    def _target_rows(self, first: int, count: int) -> NDArray[Any]:
        if self.rows is None:
            return self._read_rows(first, count)
        wanted = self.rows[first : first + count]
        blocks = [self._read_rows(start, length)[at] for start, length, at in _blocks(wanted, self._block_rows())]
        return np.concatenate(blocks)

    def _block_rows(self) -> int:
        return max(1, BLOCK_BYTES // max(1, self.table.shape[1] * ITEM_BYTES[self.table.dtype]))

    def _read_rows(self, first: int, count: int) -> NDArray[Any]:
        width = self.table.shape[1]
        row_bytes = width * ITEM_BYTES[self.table.dtype]
        data = self.source.read(self.table.file, self.table.start + first * row_bytes, count * row_bytes)
        return np.frombuffer(data, dtype=UNSIGNED[ITEM_BYTES[self.table.dtype]]).reshape(-1, width)

    def count(self) -> RowCount:
        """Return what was counted so far."""
        return RowCount(self._seen, self._different, self._first)


def _blocks(rows: NDArray[np.int64], most: int) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Return (first row, number of rows, wanted rows in it) of blocks to read; near rows share one."""
    blocks: list[tuple[int, int, NDArray[np.int64]]] = []
    for part in np.split(rows, np.flatnonzero((np.diff(rows) > NEAR_ROWS) | (np.diff(rows) < 0)) + 1):
        start = 0
        while start < len(part):
            end = int(np.searchsorted(part, part[start] + most))
            piece = part[start:end]
            blocks.append((int(piece[0]), int(piece[-1] - piece[0]) + 1, piece - piece[0]))
            start = end
    return blocks


def _comparable(mine: NDArray[Any], dtype: str, other: str) -> NDArray[Any]:
    return mine if dtype in (other, "BF16") else to_float32(mine, dtype)


def _other(theirs: NDArray[Any], dtype: str, draft_dtype: str) -> NDArray[Any]:
    if dtype == draft_dtype:
        return theirs
    values = to_float32(theirs, dtype)
    return to_bf16_bits(values) if draft_dtype == "BF16" else values
