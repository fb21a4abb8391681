"""Guards champion pointers: of two writers one loses and sees it; where conditions are ignored, moving is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import ArtifactCorrupt, PreconditionFailed, StoreRefused
from tasks.store.artifact import ArtifactRef
from tasks.store.objects import StoreFeatures
from tasks.store.pointers import Pointer, Pointers
from tests.faults.servers import credentials, localbucket, moto, open_store

FIRST = Pointer(current=ArtifactRef(kind="draft", fingerprint="1" * 64), reason="first", updated="2026-01-31T02:00:00Z")
SECOND = Pointer(current=ArtifactRef(kind="draft", fingerprint="2" * 64), history=({"fingerprint": "1" * 64},))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def with_if_match(folder: Path) -> Iterator[str]:
    with credentials(), moto(folder) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def without_if_match(folder: Path) -> Iterator[str]:
    with credentials(), localbucket(folder) as endpoint:
        yield endpoint


def test_a_pointer_moves_from_what_was_read(with_if_match: str) -> None:
    pointers = Pointers(open_store(with_if_match, "moves"))
    assert pointers.read("llama") is None
    pointers.move("llama", FIRST, None)
    read = pointers.read("llama")
    assert read is not None
    assert read[0] == FIRST
    pointers.move("llama", SECOND, read[1])
    assert [pointer for pointer, _ in [pointers.read("llama") or (None, "")]] == [SECOND]
    assert pointers.names() == ["llama"]


def test_the_slower_of_two_writers_loses_and_sees_it(with_if_match: str) -> None:
    pointers = Pointers(open_store(with_if_match, "race"))
    pointers.move("llama", FIRST, None)
    with pytest.raises(PreconditionFailed, match="it changed since it was read"):
        pointers.move("llama", SECOND, None)
    read = pointers.read("llama")
    assert read is not None
    pointers.move("llama", SECOND, read[1])
    with pytest.raises(PreconditionFailed):
        pointers.move("llama", FIRST, read[1])
    assert [pointer for pointer, _ in [pointers.read("llama") or (None, "")]] == [SECOND]


def test_without_if_match_a_second_move_needs_a_single_writer(without_if_match: str) -> None:
    store = open_store(without_if_match, "alone")
    pointers = Pointers(store)
    assert store.probe() == StoreFeatures(if_none_match=True, if_match=False, delete_objects=False)
    pointers.move("llama", FIRST, None)
    read = pointers.read("llama")
    assert read is not None
    with pytest.raises(StoreRefused, match=r"does not honour If-Match.*single writer"):
        pointers.move("llama", SECOND, read[1])
    pointers.move("llama", SECOND, read[1], single_writer=True)
    with pytest.raises(PreconditionFailed):
        pointers.move("llama", FIRST, read[1], single_writer=True)
    assert [pointer for pointer, _ in [pointers.read("llama") or (None, "")]] == [SECOND]


def test_a_broken_pointer_is_named(without_if_match: str) -> None:
    store = open_store(without_if_match, "broken")
    store.put_bytes("champions/llama.json", b"{")
    with pytest.raises(ArtifactCorrupt, match=r"champions/llama\.json"):
        Pointers(store).read("llama")
