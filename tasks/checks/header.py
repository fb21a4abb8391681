"""Reading the header of a safetensors file without trusting a byte of it.

Format: 8 bytes little-endian header length n, then n bytes of JSON, then the data:

    {"fc.weight": {"dtype": "BF16", "shape": [64, 192], "data_offsets": [0, 24576]}, "__metadata__": {"format": "pt"}}

data_offsets count from the first byte after the header. Size and first bytes are looked at before anything is
parsed, a few kilobytes are read whatever the file's size, and each way to be broken has a name.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from tasks.checks.finding import plain
from tasks.checks.source import ByteSource

LENGTH_BYTES = 8
# One read of this size holds the whole header of any usual draft (16 tensors: 1.5 kB).
FIRST_READ_BYTES = 8 * 1024
# The format's own limit (safetensors, MAX_HEADER_SIZE).
FORMAT_LIMIT_BYTES = 100_000_000
# What is read of a draft's header: hundreds of times more than a draft needs, and it keeps a check below 1 MiB.
DRAFT_LIMIT_BYTES = 512 * 1024
# A tensor of more dimensions, or of one longer than this, is no weight.
MAX_RANK = 16
MAX_DIMENSION = 2**48

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file; start and end are byte positions in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    file: str

    @property
    def num_elements(self) -> int:
        """Return the product of the shape."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def num_bytes(self) -> int:
        """Return the length of the data."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """A sound header: tensors in the order of their data, which they cover without gap or overlap."""

    file: str
    file_bytes: int
    data_start: int
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class HeaderFault:
    """Why a file is not a usable safetensors file; kind is stable, message is for a person."""

    file: str
    kind: str
    message: str
    observed: str = ""
    expected: str = ""


class _Broken(Exception):  # noqa: N818 - control flow inside this file, never seen outside
    def __init__(self, kind: str, message: str, observed: object = "", expected: object = "") -> None:
        super().__init__(message)
        self.fault = (kind, message, plain(observed), plain(expected))


def read_header(source: ByteSource, name: str, limit: int = DRAFT_LIMIT_BYTES) -> Header | HeaderFault:
    """Return the header of a file, or what is wrong with it; reads at most limit bytes and a few more."""
    size = source.size(name)
    first = bytes(source.read(name, 0, min(size, FIRST_READ_BYTES)))
    try:
        length = _header_length(first, size, limit)
        raw = first[LENGTH_BYTES : LENGTH_BYTES + length]
        if len(raw) < length:
            raw += source.read(name, len(first), length - len(raw))
        if len(raw) < length:
            raise _Broken("truncated", "the file ends inside its header", len(raw), length)
        data_start = LENGTH_BYTES + length
        tensors = [_tensor(key, entry, data_start, name) for key, entry in _entries(raw)]
        ordered = tuple(sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)))
        _cover(ordered, data_start, size)
        return Header(name, size, data_start, ordered)
    except _Broken as broken:
        kind, message, observed, expected = broken.fault
        return HeaderFault(name, kind, message, observed, expected)


def _header_length(first: bytes, size: int, limit: int) -> int:
    _look_like_weights(first, size)
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > FORMAT_LIMIT_BYTES:
        raise _Broken(
            "header_absurd", "the header length is beyond the format's limit: not a safetensors file", length, "100 MB"
        )
    if LENGTH_BYTES + length > size:
        raise _Broken("truncated", "the file is shorter than its header says", size, f"{LENGTH_BYTES + length} or more")
    if length > limit:
        raise _Broken("header_too_large", "the header is far larger than that of any draft", length, f"<= {limit}")
    if length < len(b"{}"):
        raise _Broken("header_absurd", "the header is too short to be JSON", length, ">= 2")
    return length


def _look_like_weights(first: bytes, size: int) -> None:
    if size == 0:
        raise _Broken("empty", "the file is empty: the upload or download never wrote it", 0)
    text = first[:200].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        raise _Broken(
            "lfs_pointer", "this is a Git LFS pointer, not the weights: fetch them (git lfs pull)", f"{size} bytes"
        )
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<body")):
        raise _Broken("html_page", "this is an HTML page: a download saved an error or login page", text[:40])
    if text.startswith((b"<?xml", b"<error")):
        raise _Broken("xml_page", "this is an XML answer: a download saved the object store's error", text[:40])
    if first.startswith(b"PK\x03\x04") or first.startswith(b"\x80\x02"):
        raise _Broken("pickle", "this is a PyTorch pickle under a safetensors name; it is not opened")
    if first.startswith(b"GGUF"):
        raise _Broken("gguf", "this is a GGUF file under a safetensors name")
    if text.startswith((b"{", b"[")) and text[1:2] in (b'"', b"{", b"\n", b"\r", b" ", b"}"):
        raise _Broken("json_text", "this is JSON text, not safetensors: an error answer, or an index", text[:40])
    if size < LENGTH_BYTES:
        raise _Broken("truncated", "the file is shorter than the 8 bytes that every safetensors file starts with", size)


def _entries(raw: bytes) -> list[tuple[str, Any]]:
    names: set[str] = set()

    def top(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return pairs

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=top)
    except (ValueError, RecursionError) as error:
        raise _Broken("header_not_json", "the header is not JSON", error) from error
    if not isinstance(parsed, list) or (raw.lstrip()[:1] != b"{"):
        raise _Broken("header_not_json", "the header is not a JSON object", raw[:40])
    for name, _ in parsed:
        if name in names:
            raise _Broken("duplicate_name", f"the header names a tensor twice: {plain(name)}", name)
        names.add(name)
    return [(name, entry) for name, entry in parsed if name != "__metadata__"]


def _tensor(name: str, entry: Any, data_start: int, file: str) -> Tensor:
    fields = dict(entry) if _is_pairs(entry) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _Broken("bad_dtype", f"{plain(name)} has no known dtype", dtype, "BF16, F16, F32, I64, BOOL, ...")
    if not _are_counts(shape) or len(shape) > MAX_RANK or any(length > MAX_DIMENSION for length in shape):
        raise _Broken("bad_shape", f"the shape of {plain(name)} is not a list of sizes", shape)
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _Broken("bad_offsets", f"data_offsets of {plain(name)} are not [start, end]", offsets)
    tensor = Tensor(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1], file)
    if tensor.num_bytes != tensor.num_elements * ITEM_BYTES[dtype]:
        raise _Broken(
            "size_mismatch",
            f"{plain(name)} does not have the bytes that its shape {list(shape)} and dtype {dtype} need",
            tensor.num_bytes,
            tensor.num_elements * ITEM_BYTES[dtype],
        )
    return tensor


def _is_pairs(entry: Any) -> bool:
    return isinstance(entry, list) and all(isinstance(pair, tuple) for pair in entry)


def _are_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _cover(tensors: tuple[Tensor, ...], data_start: int, size: int) -> None:
    position = data_start
    for tensor in tensors:
        if tensor.start < position:
            raise _Broken(
                "overlap", f"the data of {plain(tensor.name)} overlap another tensor's", tensor.start, position
            )
        if tensor.start > position:
            raise _Broken("gap", f"bytes before {plain(tensor.name)} belong to no tensor", tensor.start, position)
        position = tensor.end
    if position > size:
        outside = next(tensor for tensor in tensors if tensor.end > size)
        if outside.start > size and len(tensors) == 1:
            raise _Broken("out_of_range", f"{plain(outside.name)} lies outside the file", outside.end, size)
        raise _Broken("truncated", f"the file is cut: {size} of {position} bytes are there", size, position)
    if position < size:
        raise _Broken(
            "trailing_bytes",
            f"{size - position} bytes follow the last tensor: not the file that was saved",
            size,
            position,
        )
