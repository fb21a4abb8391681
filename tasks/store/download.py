"""Downloads: ranges, several at a time, hashed in order while they are written; only what matches gets its name."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import botocore.exceptions

from tasks.errors import ArtifactCorrupt, StoreError
from tasks.store.client import Calls
from tasks.store.location import MIB

RANGE_BYTES = 8 * MIB
RANGES_AT_ONCE = 4
"""Peak memory of a download is (RANGES_AT_ONCE + 1) ranges."""
READ_BYTES = 256 * 1024
WRITE_BYTES = 1 * MIB  # one write of a whole range takes three times as long (ext4 with large folios, Linux 6.18)
AGAIN = "delete the artifact and run its stage again"


def receive_versioned(calls: Calls, key: str, max_bytes: int) -> tuple[bytes, str]:
    """Return a whole object and its ETag. Raises StoreError: it is larger than max_bytes."""
    full_key = calls.location.full_key(key)

    def call() -> tuple[bytes, str]:
        answer = calls.client.get_object(Bucket=calls.location.bucket, Key=full_key)
        length = answer["ContentLength"]
        if length > max_bytes:
            answer["Body"].close()
            where = calls.location.uri(key)
            raise StoreError(f"read {where}: {length} bytes, expected at most {max_bytes}; fetch it as a file instead")
        data = bytearray(length)
        _read_body(answer, memoryview(data))
        return bytes(data), answer.get("ETag", "")

    return calls.run("read", key, call)


def receive_range(calls: Calls, key: str, start: int, length: int) -> bytearray:
    """Return bytes start to start + length. Raises ArtifactCorrupt: the object ends before."""
    data = bytearray(length)
    if length:
        with memoryview(data) as view:
            _receive_into(calls, key, start, view, None)
    return data


def _receive_into(calls: Calls, key: str, start: int, view: memoryview, total: int | None) -> None:
    """Fill view from start on. Raises ArtifactCorrupt: the object ends before, or its size is not total."""
    full_key = calls.location.full_key(key)
    wanted = f"bytes={start}-{start + len(view) - 1}"
    more: Any = {} if len(view) == total else {"Range": wanted}

    def call() -> None:
        answer = calls.client.get_object(Bucket=calls.location.bucket, Key=full_key, **more)
        length = answer["ContentLength"]
        offered = answer.get("ContentRange", f"bytes 0-{length - 1}/{length}")
        span, _, seen_total = offered.removeprefix("bytes ").partition("/")
        if span != wanted.removeprefix("bytes=") or (total is not None and seen_total != str(total)):
            answer["Body"].close()
            where, of_total = calls.location.uri(key), "" if total is None else f" of {total} bytes"
            raise ArtifactCorrupt(f"read {where}: asked for {wanted}{of_total}, was offered {offered}; {AGAIN}")
        _read_body(answer, view)

    calls.run(f"read {wanted} of", key, call)


def _read_body(answer: Any, view: memoryview) -> None:
    """Fill view from an answer's body. Raises the client's own errors, for the door."""
    body, filled = answer["Body"], 0
    while filled < len(view):
        count = body.readinto(view[filled : filled + READ_BYTES])
        if not count:
            raise botocore.exceptions.IncompleteReadError(actual_bytes=filled, expected_bytes=len(view))
        filled += count
    body.read(1)  # the end, so that the connection goes back to its pool


class _Download:
    """One object on its way into an open file, hashed and written in order while the next ranges arrive.

    Buffers are used again, since fresh ones cost as much as the copying.
    """

    def __init__(self, calls: Calls, key: str, size: int, file: BinaryIO) -> None:
        self.calls, self.key, self.size, self.file = calls, key, size, file
        self.free: list[bytearray] = []

    def sha256(self) -> str:
        """Receive and write everything; return the sha256 of what was received."""
        digest = hashlib.sha256()
        running: deque[Future[tuple[bytearray, int]]] = deque()
        pool = ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="download")
        try:
            for start in range(0, max(1, self.size), RANGE_BYTES):
                running.append(pool.submit(self._fetch, start))
                if len(running) > RANGES_AT_ONCE:
                    self._keep(digest, running.popleft())
            while running:
                self._keep(digest, running.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return digest.hexdigest()

    def _fetch(self, start: int) -> tuple[bytearray, int]:
        length = min(RANGE_BYTES, self.size - start)
        buffer = self._buffer(length)
        with memoryview(buffer) as whole, whole[:length] as view:
            _receive_into(self.calls, self.key, start, view, self.size)
        return buffer, length

    def _buffer(self, length: int) -> bytearray:
        try:
            return self.free.pop()  # all but the last range, which no other follows, have the same length
        except IndexError:
            return bytearray(length)

    def _keep(self, digest: hashlib._Hash, future: Future[tuple[bytearray, int]]) -> None:
        buffer, length = future.result()
        with memoryview(buffer) as whole, whole[:length] as view:
            for start in range(0, length, WRITE_BYTES):
                piece = view[start : start + WRITE_BYTES]
                digest.update(piece)
                self.file.write(piece)
        self.free.append(buffer)


def receive_file(calls: Calls, key: str, path: Path, size: int, sha256: str, durable: bool) -> None:
    """Write an object to path, atomically, if its size and sha256 are right.

    durable: return only when it would survive a power cut. It costs as much time as the transfer; scratch files do
    without, since whoever fetches them again verifies them again.
    Raises ArtifactCorrupt: they are not. Raises StoreError: the disk is full or not writable. No file is left then.
    """
    temporary = path.with_name(f".{path.name[:80]}.{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_room(calls, key, path, size)
        _write(calls, key, temporary, size, sha256)
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    except OSError as error:
        raise StoreError(
            f"download {calls.location.uri(key)} to {path}: {error}; it takes {size} bytes: free space, or set "
            "DRAFTWORKS_SCRATCH to another disk"
        ) from error
    finally:
        _discard(temporary)


def _discard(path: Path) -> None:
    if path.exists():
        path.unlink()


def _check_room(calls: Calls, key: str, path: Path, size: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise StoreError(
            f"download {calls.location.uri(key)} to {path}: it takes {size} bytes, {free} are free there; free space, "
            "or set DRAFTWORKS_SCRATCH to another disk"
        )


def _write(calls: Calls, key: str, path: Path, size: int, sha256: str) -> None:
    with path.open("xb") as file:
        seen = _Download(calls, key, size, file).sha256()
    if seen != sha256:
        raise ArtifactCorrupt(f"download {calls.location.uri(key)}: sha256 {seen}, its manifest says {sha256}; {AGAIN}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a local file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
