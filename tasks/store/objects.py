"""ObjectStore: the few S3 operations that Draftworks uses, on one prefix of one bucket.

Keys are relative to the prefix and never leave it. Nothing relies on object metadata, tags, or ETags being md5.
Every error is one of tasks/errors.py; transient answers are tried again inside.

    store = connect(StoreLocation("http://127.0.0.1:9000", "draftworks"))
    size, sha256 = store.put_file(Path("model.safetensors"), "draft/3fa1.../model.safetensors")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tasks.errors import ArtifactMissing, PreconditionFailed, StoreError, StoreUnavailable
from tasks.store import bucket, probe
from tasks.store.bucket import Upload
from tasks.store.client import Calls
from tasks.store.download import receive_file, receive_range, receive_versioned
from tasks.store.location import MIB, Patience, StoreLocation
from tasks.store.probe import StoreFeatures, delete_one, put_if
from tasks.store.upload import abort_upload, send_bytes, send_file

__all__ = ["Entry", "ObjectStore", "Patience", "StoreFeatures", "StoreLocation", "Upload", "connect"]

SMALL_BYTES = 64 * MIB
DELETES_AT_ONCE = 8
DELETE_BATCH = 1000  # the most that one DeleteObjects takes


class Entry(NamedTuple):
    """One object of a listing; its age is by the server's own clock."""

    key: str
    size_bytes: int
    age_s: float


def connect(location: StoreLocation, patience: Patience | None = None) -> ObjectStore:
    """Return a store; nothing is sent yet. Raises StoreRefused when there are no credentials."""
    return ObjectStore(Calls(location, patience or Patience()))


class ObjectStore:
    """Objects below one prefix; safe to share between threads."""

    def __init__(self, calls: Calls) -> None:
        """Use calls; see connect."""
        self._calls = calls
        self._deletes_many = True

    @property
    def location(self) -> StoreLocation:
        """Return where this store is."""
        return self._calls.location

    def uri(self, key: str) -> str:
        """Return s3://bucket/prefix/key."""
        return self.location.uri(key)

    def put_bytes(self, key: str, data: bytes) -> None:
        """Write one object."""
        send_bytes(self._calls, key, data)

    def get_bytes(self, key: str, max_bytes: int = SMALL_BYTES) -> bytes:
        """Return one object. Raises ArtifactMissing; StoreError: it is larger than max_bytes."""
        return receive_versioned(self._calls, key, max_bytes)[0]

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None when it is not there."""
        full_key = self.location.full_key(key)
        try:
            answer = self._calls.run(
                "look up", key, lambda: self._calls.client.head_object(Bucket=self.location.bucket, Key=full_key)
            )
        except ArtifactMissing:
            return None
        return answer["ContentLength"]

    def read_range(self, key: str, start: int, length: int) -> bytearray:
        """Return length bytes from start. Raises ArtifactMissing; ArtifactCorrupt: the object ends before."""
        return receive_range(self._calls, key, start, length)

    def put_file(self, path: Path, key: str) -> tuple[int, str]:
        """Write a file of any size as one object; return size and sha256 of what was sent. Memory stays bounded."""
        return send_file(self._calls, path, key)

    def get_file(self, key: str, path: Path, *, size_bytes: int, sha256: str, durable: bool = False) -> None:
        """Write an object to path; nothing is there until it is complete and right. Raises ArtifactCorrupt if wrong.

        durable: return only when the file would survive a power cut.
        """
        receive_file(self._calls, key, path, size_bytes, sha256, durable)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and size of every object whose key starts with prefix, in key order."""
        for key, size_bytes, _ in self.entries(prefix):
            yield key, size_bytes

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        """Yield key, size and age of every object whose key starts with prefix, in key order."""
        base = f"{self.location.prefix}/" if self.location.prefix else ""
        token: str | None = None
        while True:
            items, following, is_truncated = self._page(base + prefix, token)
            for full_key, size_bytes, age_s in items:
                if not full_key.startswith(base + prefix):
                    raise StoreError(
                        f"list {self.uri(prefix)} at {self.location.server}: the answer names {full_key!r}, which is "
                        "not below that prefix; check that the endpoint is an S3 server"
                    )
                yield Entry(full_key.removeprefix(base), size_bytes, age_s)
            if not is_truncated:
                return
            if following is None or following == token:
                raise StoreError(
                    f"list {self.uri(prefix)} at {self.location.server}: the pages do not end; see its log"
                )
            token = following

    def _page(self, full_prefix: str, token: str | None) -> tuple[Sequence[Entry], str | None, bool]:
        more: Any = {"ContinuationToken": token} if token else {}

        def call() -> tuple[Sequence[Entry], str | None, bool]:
            page = self._calls.client.list_objects_v2(Bucket=self.location.bucket, Prefix=full_prefix, **more)
            now = bucket.server_time(page)
            items = [
                Entry(item["Key"], item["Size"], max(0.0, (now - item["LastModified"]).total_seconds()))
                for item in page.get("Contents", [])
            ]
            return items, page.get("NextContinuationToken"), page["IsTruncated"]

        return self._calls.run("list", full_prefix.removeprefix(self.location.prefix).lstrip("/"), call)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, many at once where the server can; those that are gone already are fine."""
        for start in range(0, len(keys), DELETE_BATCH):
            batch = keys[start : start + DELETE_BATCH]
            if len(batch) == 1 or not self._deletes_many or not self._delete_batch(batch):
                self._delete_singly(batch)

    def _delete_singly(self, keys: Sequence[str]) -> None:
        with ThreadPoolExecutor(DELETES_AT_ONCE, thread_name_prefix="delete") as pool:
            for _ in pool.map(lambda key: delete_one(self._calls, key), keys):
                pass

    def _delete_batch(self, keys: Sequence[str]) -> bool:
        """Return whether the server deleted all of them; one that cannot is not asked again."""
        objects: Any = [{"Key": self.location.full_key(key)} for key in keys]
        try:
            answer = self._calls.run(
                f"delete {len(keys)} objects below",
                "",
                lambda: self._calls.client.delete_objects(
                    Bucket=self.location.bucket, Delete={"Objects": objects, "Quiet": True}
                ),
            )
        except StoreUnavailable:
            raise
        except StoreError:  # not offered, or a checksum that it does not know
            self._deletes_many = False
            return False
        return not answer.get("Errors")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless one is there; return whether it was written. See probe() for where this is safe."""
        try:
            put_if(self._calls, key, data, IfNoneMatch="*")
        except PreconditionFailed:
            return False
        return True

    def get_versioned(self, key: str) -> tuple[bytes, str] | None:
        """Return an object and its ETag (only good for put_if_match), None when it is not there."""
        try:
            return receive_versioned(self._calls, key, SMALL_BYTES)
        except ArtifactMissing:
            return None

    def put_if_match(self, key: str, data: bytes, etag: str) -> bool:
        """Replace an object if its ETag is still this one; return whether it was. See probe() for where it is safe."""
        if self.probe().bare_etags:
            etag = etag.strip('"')
        try:
            put_if(self._calls, key, data, IfMatch=etag)
        except (PreconditionFailed, ArtifactMissing):
            return False
        return True

    def get_aged(self, key: str) -> tuple[bytes, float] | None:
        """Return an object and its age in seconds by the server's own clock, None when it is not there."""
        full_key = self.location.full_key(key)

        def call() -> tuple[bytes, float]:
            answer = self._calls.client.get_object(Bucket=self.location.bucket, Key=full_key)
            age = bucket.server_time(answer) - answer["LastModified"]
            return answer["Body"].read(), age.total_seconds()

        try:
            return self._calls.run("read", key, call)
        except ArtifactMissing:
            return None

    def probe(self) -> StoreFeatures:
        """Return what the server honours in this bucket, found out by trying it once per process."""
        return probe.features(self._calls)

    def canary(self) -> None:
        """Write a small object and read it back. Raises StoreRefused: the server changes what it stores."""
        probe.canary(self._calls)

    def check_bucket(self) -> None:
        """Return when the bucket answers. Raises StoreRefused, with the command that makes it, when it is missing."""
        bucket.check_bucket(self._calls)

    def create_bucket(self) -> bool:
        """Make the bucket if it is not there; return whether it was made."""
        return bucket.create_bucket(self._calls)

    def abort_uploads(self, prefix: str = "", older_than_s: float = 24 * 3600) -> int | None:
        """Abort unfinished uploads below prefix that began that long ago; None where the server cannot list them."""
        return bucket.abort_uploads(self._calls, prefix, older_than_s)

    def uploads(self, prefix: str = "") -> Sequence[Upload] | None:
        """Return the unfinished uploads below prefix; None where the server cannot list them."""
        return bucket.unfinished_uploads(self._calls, prefix)

    def abort_upload(self, upload: Upload) -> None:
        """Remove the parts of an unfinished upload; one that is gone already is fine."""
        abort_upload(self._calls, upload.key, upload.upload_id)
