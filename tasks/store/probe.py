"""What a server does, found out by trying it: conditional writes, multi-object delete, and whether bytes come back.

Trials use keys below .draftworks-probe/ and leave nothing behind.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tasks.errors import ArtifactMissing, PreconditionFailed, StoreError, StoreRefused, StoreUnavailable
from tasks.store.client import Calls
from tasks.store.download import receive_versioned
from tasks.store.upload import send_bytes

PROBE_FOLDER = ".draftworks-probe"
CANARY = b'{"canary": "these bytes must come back as they are"}\n'
READ_BACK_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class StoreFeatures:
    """What a server honours; anything refused or ignored is False."""

    if_none_match: bool
    if_match: bool
    delete_objects: bool
    bare_etags: bool = False
    """If-Match wants the ETag without its quotes: Ceph 16.2 refuses the quoted one even when it is right."""


_known: dict[tuple[str | None, str], StoreFeatures] = {}
_lock = threading.Lock()


def features(calls: Calls) -> StoreFeatures:
    """Return what the server honours in this bucket; tried once per process."""
    place = (calls.location.endpoint, calls.location.bucket)
    with _lock:
        if place not in _known:
            _known[place] = _try_all(calls)
        return _known[place]


def _try_all(calls: Calls) -> StoreFeatures:
    key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    send_bytes(calls, key, b"first")
    try:
        quoted = _honours_if_match(calls, key, '"')
        bare = not quoted and _honours_if_match(calls, key, "")
        return StoreFeatures(
            if_none_match=_is_honoured(lambda: put_if(calls, key, b"second", IfNoneMatch="*")),
            if_match=quoted or bare,
            delete_objects=_deletes_many(calls, key),
            bare_etags=bare,
        )
    finally:
        delete_one(calls, key)


def _is_honoured(refusable: Callable[[], object]) -> bool:
    try:
        refusable()
    except PreconditionFailed:
        return True
    except StoreUnavailable:
        raise
    except StoreError:
        return False  # refused altogether: then there is nothing to rely on
    return False


def _honours_if_match(calls: Calls, key: str, quote: str) -> bool:
    """Return whether a stale ETag is refused and the right one accepted, in one way of writing them."""

    def etag() -> str:
        bare = receive_versioned(calls, key, READ_BACK_LIMIT_BYTES)[1].strip('"')
        return f"{quote}{bare}{quote}"

    stale = etag()
    send_bytes(calls, key, uuid.uuid4().bytes)
    if not _is_honoured(lambda: put_if(calls, key, b"never", IfMatch=stale)):
        return False
    try:
        put_if(calls, key, uuid.uuid4().bytes, IfMatch=etag())
    except PreconditionFailed:
        return False
    return True


def _deletes_many(calls: Calls, key: str) -> bool:
    full_key = calls.location.full_key(key)
    try:
        calls.run(
            "delete",
            key,
            lambda: calls.client.delete_objects(
                Bucket=calls.location.bucket, Delete={"Objects": [{"Key": full_key}], "Quiet": True}
            ),
        )
        receive_versioned(calls, key, READ_BACK_LIMIT_BYTES)
    except ArtifactMissing:
        return True
    except StoreUnavailable:
        raise
    except StoreError:
        return False
    return False


def put_if(calls: Calls, key: str, data: bytes, **condition: str) -> None:
    """Write one small object if IfNoneMatch or IfMatch holds. Raises PreconditionFailed if it does not."""
    full_key = calls.location.full_key(key)
    tries = 0

    def call() -> None:
        nonlocal tries
        tries += 1
        calls.client.put_object(Bucket=calls.location.bucket, Key=full_key, Body=data, **condition)  # type: ignore[arg-type]

    try:
        calls.run("write under a condition", key, call)
    except PreconditionFailed:
        # A first try may have been carried out although its answer got lost: then the object is ours.
        if tries == 1 or _stored(calls, key) != data:
            raise


def _stored(calls: Calls, key: str) -> bytes | None:
    try:
        return receive_versioned(calls, key, READ_BACK_LIMIT_BYTES)[0]
    except ArtifactMissing:
        return None


def delete_one(calls: Calls, key: str) -> None:
    """Delete one object; one that is gone already is fine."""
    full_key = calls.location.full_key(key)
    try:
        calls.run("delete", key, lambda: calls.client.delete_object(Bucket=calls.location.bucket, Key=full_key))
    except ArtifactMissing:
        return


def canary(calls: Calls) -> None:
    """Write a small object and read it back. Raises StoreRefused: other bytes came back."""
    key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}.json"
    send_bytes(calls, key, CANARY)
    try:
        seen, _ = receive_versioned(calls, key, READ_BACK_LIMIT_BYTES)
    finally:
        delete_one(calls, key)
    if seen == CANARY:
        return
    attempt = f"write and read back {calls.location.uri(key)} at {calls.location.server}"
    if CANARY in seen:
        raise StoreRefused(
            f"{attempt}: sent {len(CANARY)} bytes, {len(seen)} came back with transfer framing around them "
            f"({seen[:12]!r}...): the server stores chunk headers or checksum trailers inside objects and would "
            "damage every artifact; upgrade the server, or use another one"
        )
    raise StoreRefused(
        f"{attempt}: sent {len(CANARY)} bytes, {len(seen)} other bytes came back ({seen[:24]!r}...); "
        "the server or a proxy in between changes objects: use another one"
    )
