"""One pass over every weight file in bounded memory: NaN, Inf, constants, spread, sha256, and rows that must be equal.

Bytes are read once, in file order, in pieces of a few megabytes; the next pieces are read, and the last ones hashed,
while one is looked at. bf16 is handled as 16-bit patterns, so no tensor library is needed.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.checks.header import ITEM_BYTES, Header, Tensor
from tasks.checks.rowcompare import RowCompare, RowCount, to_float32
from tasks.checks.source import ByteSource
from tasks.errors import EvidenceError

PIECE_BYTES = 2 * 2**20
# Blocks read in advance (each holds source.block_bytes), and pieces that may wait to be hashed.
READ_AHEAD = 2
HASH_BEHIND = 3
READERS = 2
# Of a large tensor, every SAMPLE_STRIDE-th element is enough to know its spread.
SAMPLE_STRIDE = 64
SAMPLE_ABOVE = 2**20
# Unsigned type, mask without the sign, and the pattern of infinity; a larger masked pattern is NaN.
FLOAT_BITS: Mapping[str, tuple[str, int, int]] = {
    "BF16": ("<u2", 0x7FFF, 0x7F80),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "F32": ("<u4", 0x7FFFFFFF, 0x7F800000),
    "F64": ("<u8", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}


@dataclass
class TensorScan:
    """What one float tensor holds; std comes from a sample of a large tensor."""

    name: str
    num_nan: int = 0
    num_inf: int = 0
    is_constant: bool = True
    num_sampled: int = 0
    total: float = 0.0
    squares: float = 0.0
    first: int | None = None
    value: float = 0.0

    @property
    def std(self) -> float:
        """Return the standard deviation, 0 for an empty tensor."""
        if not self.num_sampled:
            return 0.0
        mean = self.total / self.num_sampled
        return math.sqrt(max(0.0, self.squares / self.num_sampled - mean * mean))


@dataclass(frozen=True)
class ScanResult:
    """The pass over all files."""

    tensors: Mapping[str, TensorScan] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, RowCount] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    length: int
    tensor: Tensor | None


def scan_files(
    source: ByteSource, headers: Sequence[Header], names: Mapping[str, str], compares: Mapping[str, RowCompare]
) -> ScanResult:
    """Return what all weight files hold.

    names: canonical name of each stored tensor name; compares: by canonical name, rows to compare with.
    Raises EvidenceError if a file changes while it is read.
    """
    scans: dict[str, TensorScan] = {}
    sha256: dict[str, str] = {}
    with ThreadPoolExecutor(READERS) as reader, ThreadPoolExecutor(1) as hasher:
        for header in headers:
            digest, hashed = hashlib.sha256(), deque[Future[None]]()
            for piece, data in _ahead(source, header, _pieces(header, names, compares), reader):
                hashed.append(hasher.submit(digest.update, data))
                if piece.tensor is not None:
                    _look(piece, data, scans, names, compares)
                if len(hashed) > HASH_BEHIND:
                    hashed.popleft().result()
            for behind in hashed:
                behind.result()
            sha256[header.file] = digest.hexdigest()
    return ScanResult(scans, sha256, {name: compare.count() for name, compare in compares.items()})


def scan_vectors(source: ByteSource, tensors: Mapping[str, Tensor], limit_bytes: int) -> ScanResult:
    """Return what the float vectors (norms) hold, without reading anything else."""
    scans: dict[str, TensorScan] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in FLOAT_BITS and len(tensor.shape) == 1 and tensor.num_bytes <= limit_bytes:
            scans[name] = TensorScan(name)
            _add(scans[name], source.read(tensor.file, tensor.start, tensor.num_bytes), tensor)
    return ScanResult(scans)


def _pieces(header: Header, names: Mapping[str, str], compares: Mapping[str, RowCompare]) -> Iterator[_Piece]:
    yield _Piece(0, header.data_start, None)
    for tensor in header.tensors:
        step = PIECE_BYTES
        if names[tensor.name] in compares and len(tensor.shape) == 2:
            row_bytes = max(1, tensor.shape[1] * ITEM_BYTES[tensor.dtype])
            step = max(1, PIECE_BYTES // row_bytes) * row_bytes
        for start in range(tensor.start, tensor.end, step):
            yield _Piece(start, min(step, tensor.end - start), tensor)


def _blocks(pieces: Iterable[_Piece], limit_bytes: int) -> Iterator[list[_Piece]]:
    """Group pieces that follow each other into what one read brings."""
    block: list[_Piece] = []
    for piece in pieces:
        follows = bool(block) and piece.start == block[-1].start + block[-1].length
        if block and (not follows or piece.start + piece.length - block[0].start > limit_bytes):
            yield block
            block = []
        block.append(piece)
    yield block


def _ahead(
    source: ByteSource, header: Header, pieces: Iterable[_Piece], reader: ThreadPoolExecutor
) -> Iterator[tuple[_Piece, memoryview]]:
    waiting: deque[tuple[list[_Piece], Future[bytes | bytearray]]] = deque()
    for block in _blocks(pieces, source.block_bytes):
        length = block[-1].start + block[-1].length - block[0].start
        waiting.append((block, reader.submit(source.read, header.file, block[0].start, length)))
        if len(waiting) > READ_AHEAD:
            yield from _cut(source, header, *waiting.popleft())
    for left in waiting:
        yield from _cut(source, header, *left)


def _cut(
    source: ByteSource, header: Header, block: list[_Piece], coming: Future[bytes | bytearray]
) -> Iterator[tuple[_Piece, memoryview]]:
    data, start = memoryview(coming.result()), block[0].start
    for piece in block:
        seen = data[piece.start - start :][: piece.length]
        if len(seen) != piece.length:
            raise EvidenceError(
                f"{source.label}/{header.file} changed while it was read: {len(seen)} of {piece.length} bytes "
                f"at {piece.start}. Check it again when nobody writes to it."
            )
        yield piece, seen


def _look(
    piece: _Piece,
    data: memoryview,
    scans: dict[str, TensorScan],
    names: Mapping[str, str],
    compares: Mapping[str, RowCompare],
) -> None:
    tensor = piece.tensor
    assert tensor is not None
    name = names[tensor.name]
    if tensor.dtype in FLOAT_BITS:
        _add(scans.setdefault(name, TensorScan(name)), data, tensor)
    if name in compares:
        compares[name].add(tensor, piece.start - tensor.start, data)


def _add(scan: TensorScan, data: bytes | bytearray | memoryview, tensor: Tensor) -> None:
    """Take one piece of a tensor into account."""
    dtype, mask, infinity = FLOAT_BITS[tensor.dtype]
    bits: NDArray[Any] = np.frombuffer(data, dtype=dtype)
    if not len(bits):
        return
    unsigned = bits & bits.dtype.type(mask)
    if int(unsigned.max()) >= infinity:
        scan.num_inf += int(np.count_nonzero(unsigned == infinity))
        scan.num_nan += int(np.count_nonzero(unsigned > infinity))
    stride = SAMPLE_STRIDE if tensor.num_elements > SAMPLE_ABOVE else 1
    sample = to_float32(np.ascontiguousarray(bits[::stride]), tensor.dtype).astype(np.float64)
    sample = sample[np.isfinite(sample)]
    scan.num_sampled += len(sample)
    scan.total += float(sample.sum())
    scan.squares += float(np.square(sample).sum())
    if scan.first is None:
        scan.first = int(bits[0])
        scan.value = float(to_float32(bits[:1].copy(), tensor.dtype)[0])
    if scan.is_constant:
        scan.is_constant = bool(bits[0] == scan.first and bits[-1] == scan.first and (bits == scan.first).all())
