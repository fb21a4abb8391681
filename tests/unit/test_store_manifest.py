"""Guards the shapes that decide what is done: paths stay in their folder, accounts close, newer formats are refused."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.errors import ArtifactCorrupt, RecipeError, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.location import StoreLocation
from tasks.store.manifest import (
    Account,
    Cost,
    FileEntry,
    Manifest,
    PartManifest,
    Provenance,
    dump,
    load_manifest,
    load_part,
    relative_path,
)

SHA = "0" * 64
PROVENANCE = Provenance(
    argv=("draftworks",), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={"name": "x"}
)
MANIFEST = Manifest(
    kind="corpus",
    fingerprint="a" * 64,
    stage_version=1,
    inputs={"prompts": SHA},
    files=(FileEntry(path="rows/0.parquet", size_bytes=8, sha256=SHA),),
    account=Account(num_input=3, num_kept=2, num_failed=1, reasons={"too long": 1}),
    cost=Cost(seconds=1.5),
    provenance=PROVENANCE,
    facts={"coverage": 0.9},
    created="2026-01-31T02:00:00Z",
)
BAD_PATHS = [
    "",
    "/etc/passwd",
    "../x",
    "a/../x",
    "a//b",
    "a/",
    ".",
    "./a",
    "a/..",
    "a\\..\\b",
    "C:\\x",
    "a\x00b",
    "a\nb",
    "a\u2028b",
    "x" * 513,
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leaves_its_folder_is_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        FileEntry(path=path, size_bytes=1, sha256=SHA)
    with pytest.raises(StoreError, match="keys stay below"):
        StoreLocation("http://127.0.0.1:1", "bucket", "prefix").full_key(path)


@pytest.mark.parametrize("path", ["a", "a/b.json", "a b+c/\u00fc.bin", "..a/b..", "-x", "a/.hidden"])
def test_an_ordinary_path_is_accepted(path: str) -> None:
    assert FileEntry(path=path, size_bytes=0, sha256=SHA).path == path


@given(st.lists(st.text(alphabet=string.ascii_letters + "./\\", max_size=6), max_size=5).map("/".join))
def test_an_accepted_path_resolves_inside_its_folder(path: str) -> None:
    try:
        relative_path(path)
    except ValueError:
        return
    assert not path.startswith("/")
    assert all(part not in ("", ".", "..") for part in path.split("/"))


def test_the_same_path_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="listed twice"):
        PartManifest(name="0", fingerprint=SHA, files=MANIFEST.files * 2)


def test_an_account_that_does_not_close_is_refused() -> None:
    with pytest.raises(ValidationError, match="does not close: 3 came in, 2"):
        Account(num_input=3, num_kept=2)


def test_a_manifest_comes_back_equal_from_canonical_bytes() -> None:
    data = dump(MANIFEST)
    assert load_manifest(data, "here") == MANIFEST
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode() + b"\n"
    assert data.isascii()


def test_a_part_comes_back_equal() -> None:
    part = PartManifest(name="epoch-1", fingerprint=SHA, files=MANIFEST.files, facts={"loss": 0.5})
    assert load_part(dump(part), "here") == part


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump(MANIFEST.model_copy(update={"facts": {"loss": float("nan")}}))


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    newer = json.loads(dump(MANIFEST)) | {"format_version": 2, "something_new": 1}
    with pytest.raises(StoreError, match=r"format version 2.*up to 1.*upgrade") as caught:
        load_manifest(json.dumps(newer).encode(), "s3://b/corpus/manifest.json")
    assert not isinstance(caught.value, ArtifactCorrupt)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"format_version":1}',
        b"\xff\xfe",
        dump(MANIFEST).replace(b"rows/", b"../"),
        b"1e999",
    ],
)
def test_what_is_no_manifest_is_corrupt(data: bytes) -> None:
    with pytest.raises(ArtifactCorrupt, match="s3://b/m"):
        load_manifest(data, "s3://b/m")


@pytest.mark.parametrize("kind", ["", "Corpus", "a/b", "..", "a-", "a_b", "corpus\n"])
def test_a_kind_is_lower_case_words(kind: str) -> None:
    with pytest.raises(ValidationError):
        ArtifactRef(kind=kind, fingerprint=SHA)


@pytest.mark.parametrize("fingerprint", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_fingerprint_is_64_lower_case_hex_digits(fingerprint: str) -> None:
    with pytest.raises(ValidationError):
        ArtifactRef(kind="draft", fingerprint=fingerprint)


def test_a_ref_names_its_prefix() -> None:
    assert ArtifactRef(kind="hidden-states", fingerprint=SHA).prefix == f"hidden-states/{SHA}/"


@pytest.mark.parametrize(
    ("endpoint", "bucket", "prefix"),
    [
        ("127.0.0.1:9000", "bucket", ""),
        ("ftp://host", "bucket", ""),
        ("http://user:secret@host", "bucket", ""),
        (None, "Bucket", ""),
        (None, "b", ""),
        (None, "bucket", "a/../b"),
    ],
)
def test_a_location_that_cannot_be_is_refused(endpoint: str | None, bucket: str, prefix: str) -> None:
    with pytest.raises(RecipeError):
        StoreLocation(endpoint, bucket, prefix)


def test_a_location_names_objects() -> None:
    location = StoreLocation("http://host:1", "bucket", "/some/prefix/")
    assert location.full_key("a/b") == "some/prefix/a/b"
    assert location.uri("a/b") == "s3://bucket/some/prefix/a/b"
    assert StoreLocation(None, "bucket").uri("a") == "s3://bucket/a"
