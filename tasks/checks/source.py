"""Where a draft's files are read from: a folder, or a key prefix of an object store, by ranges.

Names are POSIX paths relative to the folder: config.json, model.safetensors, 3/config.json.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import EvidenceError

# A run folder holds numbered epochs one level down; nothing deeper belongs to a draft.
MAX_DEPTH = 2
# Entries that a folder may have before listing it is refused: far above any run, far below what hurts.
MAX_ENTRIES = 20_000
# What one read of a whole pass brings: small for a disk, large where every read is a request.
DISK_BLOCK_BYTES = 2 * 2**20
REQUEST_BLOCK_BYTES = 16 * 2**20


class ByteSource(Protocol):
    """Named files that can be listed, measured and read in part."""

    label: str
    block_bytes: int
    """What one read should bring when the whole file is read."""

    def names(self) -> Sequence[str]:
        """Return the relative names of all files, sorted."""
        ...

    def size(self, name: str) -> int:
        """Return the length of a file in bytes. Raises EvidenceError if it cannot be read."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes | bytearray:
        """Return up to length bytes from start; fewer only at the end of the file."""
        ...


class LocalFolder:
    """Files of a folder on this machine; links are followed, dangling ones left out."""

    def __init__(self, path: Path) -> None:
        """Keep the path. Raises EvidenceError if it is not a folder."""
        if not path.is_dir():
            seen = "a file" if path.exists() else "nothing"
            raise EvidenceError(f"cannot check the draft at {path}: expected a folder there, found {seen}.")
        self.path = path
        self.label = str(path)
        self.block_bytes = DISK_BLOCK_BYTES
        self._names: list[str] | None = None

    def names(self) -> Sequence[str]:
        """Return the files of the folder and of its direct subfolders, as they were when first asked."""
        if self._names is not None:
            return self._names
        found: list[str] = []
        try:
            self._walk(self.path, "", found)
        except OSError as error:
            raise EvidenceError(f"cannot list {self.path}: {error.strerror}.") from error
        self._names = sorted(found)
        return self._names

    def _walk(self, folder: Path, prefix: str, found: list[str]) -> None:
        for entry in os.scandir(folder):
            name = f"{prefix}{entry.name}"
            if entry.is_file():
                found.append(name)
            elif entry.is_dir() and name.count("/") + 1 < MAX_DEPTH:
                self._walk(Path(entry.path), f"{name}/", found)
            if len(found) > MAX_ENTRIES:
                raise EvidenceError(f"{self.path} holds more than {MAX_ENTRIES} files; give the folder of one draft.")

    def links(self) -> dict[str, str]:
        """Return the symbolic links of the folder with what they point at, dangling or not."""
        return {entry.name: os.readlink(entry.path) for entry in os.scandir(self.path) if entry.is_symlink()}

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""
        try:
            return (self.path / name).stat().st_size
        except OSError as error:
            raise EvidenceError(f"cannot read {self.path / name}: {error.strerror}.") from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return up to length bytes of a file from start."""
        try:
            with (self.path / name).open("rb", buffering=0) as file:
                file.seek(start)
                return _read_fully(file, length)
        except OSError as error:
            raise EvidenceError(f"cannot read {self.path / name}: {error.strerror}.") from error


def _read_fully(file: Any, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class RangedObjects(Protocol):
    """The part of an object store that checking needs."""

    def list(self, prefix: str) -> Iterable[tuple[str, int]]:
        """Return key and size of every object below prefix."""
        ...

    def read_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        """Return up to length bytes of an object from start."""
        ...


class ObjectPrefix:
    """Files below a key prefix of an object store, listed once."""

    def __init__(self, store: RangedObjects, prefix: str, label: str = "") -> None:
        """Keep the store and the prefix, which names a folder with or without a closing slash."""
        self._store = store
        self._prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        self._sizes: dict[str, int] | None = None
        self.label = label or self._prefix
        self.block_bytes = REQUEST_BLOCK_BYTES

    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            found = ((key.removeprefix(self._prefix), size) for key, size in self._store.list(self._prefix))
            self._sizes = {name: size for name, size in found if name and name.count("/") < MAX_DEPTH}
            if not self._sizes:
                raise EvidenceError(f"cannot check the draft at {self.label}: no object has that prefix.")
        return self._sizes

    def names(self) -> Sequence[str]:
        """Return the names below the prefix. Raises EvidenceError if there are none."""
        return sorted(self._listed())

    def size(self, name: str) -> int:
        """Return the length of an object in bytes."""
        if name not in self._listed():
            raise EvidenceError(f"cannot read {name} below {self.label}: there is no such object.")
        return self._listed()[name]

    def read(self, name: str, start: int, length: int) -> bytes | bytearray:
        """Return up to length bytes of an object from start."""
        length = min(length, self.size(name) - start)
        return self._store.read_range(f"{self._prefix}{name}", start, length) if length > 0 else b""


class Subfolder:
    """One folder inside another source: an epoch of a run."""

    def __init__(self, source: ByteSource, folder: str) -> None:
        """Keep the outer source and the folder's name."""
        self._source = source
        self._folder = folder
        self.label = f"{source.label.rstrip('/')}/{folder}"
        self.block_bytes = source.block_bytes

    def names(self) -> Sequence[str]:
        """Return the names below the folder, relative to it."""
        prefix = f"{self._folder}/"
        return [name.removeprefix(prefix) for name in self._source.names() if name.startswith(prefix)]

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""
        return self._source.size(f"{self._folder}/{name}")

    def read(self, name: str, start: int, length: int) -> bytes | bytearray:
        """Return up to length bytes of a file from start."""
        return self._source.read(f"{self._folder}/{name}", start, length)
