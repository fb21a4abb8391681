"""The bucket itself: is it there, make it, and what unfinished uploads left in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tasks.errors import StoreError, StoreRefused
from tasks.store.answers import NO_BUCKET, code_of
from tasks.store.client import Calls
from tasks.store.upload import abort_upload


def check_bucket(calls: Calls) -> None:
    """Return when the bucket answers. Raises StoreRefused: missing or forbidden; StoreUnavailable, soon: no answer.

    Lists instead of asking with HEAD, since the answer to HEAD has no body to say what is wrong, and any web server
    would do for a yes.
    """
    brief = calls.first_contact()
    name, prefix = brief.location.bucket, brief.location.prefix
    brief.run(
        "look into bucket",
        "",
        lambda: brief.client.list_objects_v2(Bucket=name, Prefix=prefix, MaxKeys=1)["IsTruncated"],
    )


def create_bucket(calls: Calls) -> bool:
    """Make the bucket if it is not there; return whether it was made."""
    try:
        check_bucket(calls)
        return False
    except StoreRefused as error:
        if code_of(error) != NO_BUCKET:
            raise
    location = calls.location
    more: Any = {}
    if location.endpoint is None and location.region != "us-east-1":
        more = {"CreateBucketConfiguration": {"LocationConstraint": location.region}}
    try:
        calls.run("create bucket", "", lambda: calls.client.create_bucket(Bucket=location.bucket, **more))
    except StoreError:
        check_bucket(calls)  # somebody else made it meanwhile, or this says what is wrong
        return False
    return True


@dataclass(frozen=True)
class Upload:
    """An upload in parts that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    age_s: float


def unfinished_uploads(calls: Calls, prefix: str) -> list[Upload] | None:
    """Return the unfinished uploads below prefix.

    Returns None where the server cannot list them (localbucket keeps them in .localbucket-uploads of its data folder).
    """
    base = f"{calls.location.prefix}/" if calls.location.prefix else ""
    found: list[Upload] = []
    markers: dict[str, str] = {}
    while True:
        try:
            page = _uploads_page(calls, base + prefix, markers)
        except StoreRefused:
            return None
        now = server_time(page)
        found += [
            Upload(item["Key"].removeprefix(base), item["UploadId"], (now - item["Initiated"]).total_seconds())
            for item in page.get("Uploads", [])
            if item["Key"].startswith(base + prefix)
        ]
        if not page.get("IsTruncated"):
            return found
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def abort_uploads(calls: Calls, prefix: str, older_than_s: float) -> int | None:
    """Abort the unfinished uploads below prefix that began that long ago; return how many, None as above."""
    uploads = unfinished_uploads(calls, prefix)
    if uploads is None:
        return None
    old = [upload for upload in uploads if upload.age_s >= older_than_s]
    for upload in old:
        abort_upload(calls, upload.key, upload.upload_id)
    return len(old)


def _uploads_page(calls: Calls, prefix: str, markers: dict[str, str]) -> Any:
    more: Any = markers
    return calls.run(
        "list unfinished uploads below",
        prefix,
        lambda: calls.client.list_multipart_uploads(Bucket=calls.location.bucket, Prefix=prefix, **more),
    )


def server_time(answer: Any) -> datetime:
    """Return the server's clock as its answer carries it, so that ages do not depend on clocks that differ."""
    text = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if text is None:
        return datetime.now(UTC)
    return parsedate_to_datetime(text).astimezone(UTC)
