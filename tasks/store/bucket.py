"""The bucket itself: is it there, make it, and what unfinished uploads left in it."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tasks.errors import ArtifactMissing, StoreError, StoreRefused
from tasks.store.client import Calls
from tasks.store.upload import abort_upload


def check_bucket(calls: Calls) -> None:
    """Return when the bucket answers. Raises StoreRefused: missing or forbidden; StoreUnavailable, soon: no answer."""
    brief = calls.first_contact()
    location = brief.location
    try:
        brief.run("look up bucket", "", lambda: brief.client.head_bucket(Bucket=location.bucket))
    except ArtifactMissing as error:
        server = f"--endpoint-url {location.endpoint} " if location.endpoint else ""
        raise StoreRefused(
            f"bucket {location.bucket!r} is not at {location.server}; make it with `draftworks up` (local server) or "
            f"`aws {server}s3 mb s3://{location.bucket}`, or set DRAFTWORKS_S3_BUCKET to one that exists"
        ) from error


def create_bucket(calls: Calls) -> bool:
    """Make the bucket if it is not there; return whether it was made."""
    try:
        check_bucket(calls)
        return False
    except StoreRefused as error:
        if not isinstance(error.__cause__, ArtifactMissing):
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


def abort_uploads(calls: Calls, prefix: str, older_than_s: float) -> int | None:
    """Abort the unfinished uploads below prefix that began that long ago; return how many.

    Returns None where the server cannot list them (localbucket keeps them in .localbucket-uploads of its data folder).
    """
    base = f"{calls.location.prefix}/" if calls.location.prefix else ""
    num_aborted = 0
    markers: dict[str, str] = {}
    while True:
        try:
            page = _uploads_page(calls, base + prefix, markers)
        except StoreRefused:
            return None
        now = server_time(page)
        for upload in page.get("Uploads", []):
            key = upload["Key"].removeprefix(base)
            if upload["Key"].startswith(base + prefix) and (now - upload["Initiated"]).total_seconds() >= older_than_s:
                abort_upload(calls, key, upload["UploadId"])
                num_aborted += 1
        if not page.get("IsTruncated"):
            return num_aborted
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


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
