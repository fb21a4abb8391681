"""Raw tensors of a safetensors file, without torch: states stay bytes from the server to the shard.

Letters: T tokens, L captured layers (the final state last), D hidden size.
Format: 8-byte little-endian header length, JSON header, data (https://github.com/huggingface/safetensors).
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import EvidenceError

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4}
MAX_HEADER_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it lies in the file: dtype by its safetensors name, shape, row-major little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _parse(blob: bytes, path: Path) -> dict[str, RawTensor]:
    if len(blob) < 8:
        raise EvidenceError(f"{path} is {len(blob)} bytes long: not a safetensors file")
    (length,) = struct.unpack("<Q", blob[:8])
    if length > min(MAX_HEADER_BYTES, len(blob) - 8):
        raise EvidenceError(f"{path} is cut or not safetensors: header of {length} bytes in a file of {len(blob)}")
    try:
        header = json.loads(blob[8 : 8 + length])
    except ValueError as error:
        raise EvidenceError(f"{path} has a header that is not JSON: {error}") from error
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > len(blob):
            raise EvidenceError(f"{path} is cut: tensor {name} ends at byte {end} of {len(blob)}")
        tensors[name] = RawTensor(entry["dtype"], tuple(entry["shape"]), blob[start:end])
    return tensors


def read_tensors(path: Path) -> dict[str, RawTensor]:
    """Return all tensors of a small safetensors file. Raises EvidenceError: absent, cut, not safetensors."""
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"cannot read {path}: {error.strerror}") from error
    return _parse(blob, path)


def write_tensors(path: Path, tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file; tensors in the given order, header padded to 8 bytes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.data)
