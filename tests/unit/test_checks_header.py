"""Guards the reader of safetensors headers: every way to be broken has a name, nothing is read or parsed blindly."""

import json
import struct
from collections.abc import Sequence

import pytest

from tasks.checks.header import DRAFT_LIMIT_BYTES, Header, HeaderFault, read_header
from tests.cases.tiny import draft_tensors, dump_safetensors


class Memory:
    """Bytes as a source; counts what is read."""

    label = "memory"
    block_bytes = 2**20

    def __init__(self, data: bytes, claimed_size: int | None = None) -> None:
        """Hold the data of one file, of which a larger size may be claimed."""
        self.data = data
        self.claimed = len(data) if claimed_size is None else claimed_size
        self.num_read = 0

    def names(self) -> Sequence[str]:
        """Return the one name."""
        return ["x.safetensors"]

    def size(self, name: str) -> int:
        """Return the claimed size."""
        return self.claimed

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return bytes and count them."""
        piece = self.data[start : start + length]
        self.num_read += len(piece)
        return piece


def file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
BROKEN: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "empty"),
    "five bytes": (b"\x10\x00\x00\x00\x00", "truncated"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 129344\n", "lfs_pointer"),
    "html page": (b"<!DOCTYPE html><html><body>404</body></html>", "html_page"),
    "html page, later": (b"\n\n  <html><head></head></html>", "html_page"),
    "xml answer": (b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "xml_page"),
    "xml answer, bare": (b"<Error><Code>AccessDenied</Code></Error>", "xml_page"),
    "json answer": (b'{"error": "Unauthorized"}', "json_text"),
    "pickle in a zip": (b"PK\x03\x04" + bytes(100), "pickle"),
    "old pickle": (b"\x80\x02}q\x00." + bytes(100), "pickle"),
    "gguf": (b"GGUF" + bytes(100), "gguf"),
    "absurd length": (b"\xff" * 8 + b"{}", "header_absurd"),
    "just over the format's limit": (struct.pack("<Q", 100_000_001) + b"{}", "header_absurd"),
    "zero length": (struct.pack("<Q", 0) + b"{}", "header_absurd"),
    "length beyond the file": (file({"a": entry()}, bytes(8), 4000), "truncated"),
    "not json": (file(b"{not json}"), "header_not_json"),
    "not utf-8": (file(b'{"\xff\xfe": 1}'), "header_not_json"),
    "a list": (file(b'[["a", 1]]  '), "header_not_json"),
    "nested without end": (file(DEEP), "header_not_json"),
    "name twice": (file(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', bytes(8)), "duplicate_name"),
    "no dtype": (file({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "bad_dtype"),
    "unknown dtype": (file({"a": entry("F31")}, bytes(8)), "bad_dtype"),
    "entry is a list": (file({"a": [1, 2]}, bytes(8)), "bad_dtype"),
    "negative shape": (file({"a": entry(shape=[-2])}, bytes(8)), "bad_shape"),
    "shape of floats": (file({"a": entry(shape=[2.0])}, bytes(8)), "bad_shape"),
    "shape is true": (file({"a": entry(shape=[True, 2])}, bytes(8)), "bad_shape"),
    "huge dimension": (file({"a": entry(shape=[2**60, 2**60])}, bytes(8)), "bad_shape"),
    "offsets swapped": (file({"a": entry(offsets=[8, 0])}, bytes(8)), "bad_offsets"),
    "three offsets": (file({"a": entry(offsets=[0, 4, 8])}, bytes(8)), "bad_offsets"),
    "shape and bytes differ": (file({"a": entry(shape=[3])}, bytes(8)), "size_mismatch"),
    "overlap": (file({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)), "overlap"),
    "gap": (file({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)), "gap"),
    "out of range": (file({"a": entry(offsets=[0, 8])}), "truncated"),
    "cut": (file({"a": entry()}, bytes(5)), "truncated"),
    "trailing bytes": (file({"a": entry()}, bytes(9)), "trailing_bytes"),
    "trailing checksum": (file({"a": entry()}, bytes(8) + b"\r\n0\r\nx-amz-checksum"), "trailing_bytes"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_each_way_to_be_broken_has_a_name_and_a_reason(name: str) -> None:
    data, kind = BROKEN[name]

    found = read_header(Memory(data), "x.safetensors")

    assert isinstance(found, HeaderFault)
    assert found.kind == kind
    assert found.message.isascii()


def test_sound_header_lists_tensors_in_file_order() -> None:
    data = dump_safetensors(draft_tensors())
    found = read_header(Memory(data), "x.safetensors")

    assert isinstance(found, Header)
    assert {tensor.name for tensor in found.tensors} == set(draft_tensors())
    assert found.tensors[-1].end == len(data)


def test_empty_tensors_and_scalars_are_sound() -> None:
    tensors = {"none": entry(shape=[0, 4], offsets=[0, 0]), "one": entry(shape=[], offsets=[0, 4])}

    assert isinstance(read_header(Memory(file(tensors, bytes(4))), "x.safetensors"), Header)


def test_100_mb_header_is_not_read() -> None:
    source = Memory(struct.pack("<Q", 99_000_000) + b'{"a"', claimed_size=200_000_000)

    found = read_header(source, "x.safetensors")

    assert isinstance(found, HeaderFault)
    assert found.kind == "header_too_large"
    assert source.num_read < 100


def test_header_up_to_the_limit_is_read_in_two_reads() -> None:
    padding = "x" * (DRAFT_LIMIT_BYTES - 200)
    source = Memory(file({"__metadata__": {"note": padding}, "a": entry()}, bytes(8)))

    assert isinstance(read_header(source, "x.safetensors"), Header)
    assert source.num_read <= DRAFT_LIMIT_BYTES + 8
