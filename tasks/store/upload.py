"""Uploads: a file is read once, hashed while it is read, and sent as equal parts, several at a time."""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from tasks.errors import ArtifactMissing, EvidenceError, StoreError, StoreUnavailable
from tasks.store.client import Calls
from tasks.store.location import MIB

MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
"""Peak memory of an upload is (PARTS_AT_ONCE + 1) parts."""
Etags = list[tuple[int, str]]


def send_bytes(calls: Calls, key: str, data: bytes) -> None:
    """Write one object in one request."""
    full_key = calls.location.full_key(key)
    # A file-like body makes the client wait for "100 Continue", so that a refusal arrives instead of a broken pipe.
    calls.run(
        "write",
        key,
        lambda: calls.client.put_object(
            Bucket=calls.location.bucket, Key=full_key, Body=io.BytesIO(data), ContentLength=len(data)
        ),
    )


def send_file(calls: Calls, path: Path, key: str) -> tuple[int, str]:
    """Write a file as one object; return its size and sha256, taken from the bytes that were sent.

    What a killed process left of an upload in parts of the same key is removed first, where the server can list it.
    A second writer of the key, which a lease rules out, then finds its own parts gone and sends them again; on a server
    that does not say so (moto: 500) it fails with StoreUnavailable.
    Raises EvidenceError: the file cannot be read, or changed while it was.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = _send_open_file(calls, file, size, key)
    except OSError as error:
        raise EvidenceError(f"upload {path} to {calls.location.uri(key)}: {error}; the file must stay there") from error
    return size, digest


def _send_open_file(calls: Calls, file: BinaryIO, size: int, key: str) -> str:
    if size <= calls.patience.part_bytes:
        data = file.read(size + 1)
        _check_length(calls, key, len(data), size)
        send_bytes(calls, key, data)
        return hashlib.sha256(data).hexdigest()
    _abort_earlier(calls, key)
    try:
        return _send_in_parts(calls, file, size, key)
    except ArtifactMissing:
        # The upload is gone: it was completed and the answer got lost, or another writer aborted it. Send it all again,
        # without aborting that writer's, so that two writers do not hinder each other for ever.
        file.seek(0)
    try:
        return _send_in_parts(calls, file, size, key)
    except ArtifactMissing as error:
        raise StoreUnavailable(f"{error}; the upload vanished twice while it was sent") from error


def _abort_earlier(calls: Calls, key: str) -> None:
    """Abort the unfinished uploads of exactly this key; one small request when there are none."""
    bucket, full_key = calls.location.bucket, calls.location.full_key(key)
    try:
        page = calls.run(
            "list unfinished uploads of",
            key,
            lambda: calls.client.list_multipart_uploads(Bucket=bucket, Prefix=full_key),
        )
    except StoreUnavailable:
        raise
    except StoreError:
        return  # not offered or not allowed: they stay until the server's own rules or a person remove them
    for upload in page.get("Uploads", []):
        if upload["Key"] == full_key:
            abort_upload(calls, key, upload["UploadId"])


def _check_length(calls: Calls, key: str, seen: int, expected: int) -> None:
    if seen != expected:
        raise EvidenceError(
            f"upload to {calls.location.uri(key)}: the file changed while it was read "
            f"(expected {expected} bytes, saw {seen}); stop whatever writes it"
        )


def part_size(size: int, smallest: int) -> int:
    """Return the size of every part but the last (some servers reject unequal parts): at most MAX_PARTS of them."""
    return max(smallest, -(-size // (MAX_PARTS * MIB)) * MIB)


def _send_in_parts(calls: Calls, file: BinaryIO, size: int, key: str) -> str:
    bucket, full_key = calls.location.bucket, calls.location.full_key(key)
    client = calls.client
    upload = calls.run(
        "start upload", key, lambda: client.create_multipart_upload(Bucket=bucket, Key=full_key)["UploadId"]
    )
    try:
        etags, digest = _send_parts(calls, file, size, key, upload)
        parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in etags]}
        calls.run(
            "complete upload",
            key,
            lambda: client.complete_multipart_upload(
                Bucket=bucket,
                Key=full_key,
                UploadId=upload,
                MultipartUpload=parts,  # type: ignore[arg-type]
            ),
        )
    except BaseException as error:
        _abort(calls, key, upload, error)
        raise
    return digest


def _abort(calls: Calls, key: str, upload: str, cause: BaseException) -> None:
    try:
        abort_upload(calls, key, upload)
    except StoreError as error:
        cause.add_note(f"parts of upload {upload} may remain until `draftworks gc` removes them: {error}")


def abort_upload(calls: Calls, key: str, upload: str) -> None:
    """Remove the parts of an unfinished upload; one that is gone already is fine."""
    bucket, full_key = calls.location.bucket, calls.location.full_key(key)
    try:
        calls.run(
            "abort upload",
            key,
            lambda: calls.client.abort_multipart_upload(Bucket=bucket, Key=full_key, UploadId=upload),
        )
    except ArtifactMissing:
        return


def _send_parts(calls: Calls, file: BinaryIO, size: int, key: str, upload: str) -> tuple[Etags, str]:
    """Return the parts' numbers and ETags, and the sha256 of all bytes. On an error, waits for the running parts."""
    digest = hashlib.sha256()
    length, seen = part_size(size, calls.patience.part_bytes), 0
    running: deque[Future[tuple[int, str]]] = deque()
    etags: Etags = []
    with ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="upload") as pool:
        try:
            for number, data in enumerate(iter(lambda: file.read(length), b""), start=1):
                running.append(pool.submit(_send_part, calls, key, upload, number, data))
                digest.update(data)
                seen += len(data)
                _check_length(calls, key, min(seen, size), seen)
                if len(running) >= PARTS_AT_ONCE:
                    etags.append(running.popleft().result())
            etags.extend(future.result() for future in running)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    _check_length(calls, key, seen, size)
    return etags, digest.hexdigest()


def _send_part(calls: Calls, key: str, upload: str, number: int, data: bytes) -> tuple[int, str]:
    bucket, full_key = calls.location.bucket, calls.location.full_key(key)
    etag = calls.run(
        f"send part {number} of",
        key,
        lambda: calls.client.upload_part(
            Bucket=bucket,
            Key=full_key,
            UploadId=upload,
            PartNumber=number,
            Body=io.BytesIO(data),
            ContentLength=len(data),
        )["ETag"],
    )
    return number, etag
