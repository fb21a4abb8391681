"""Makes the boto3 client, and carries out one call: translated at the door, tried again while that can help."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from botocore.utils import parse_timestamp
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tasks.errors import StoreRefused, StoreUnavailable
from tasks.store.door import at_the_door
from tasks.store.location import Patience, StoreLocation

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_CONNECTIONS = 16
FIRST_CONTACT_ATTEMPTS = 2
T = TypeVar("T")


@cache
def _loader() -> Loader:
    """Return the reader of service descriptions; its cache makes every client after the first cheap."""
    return create_loader()


def _instant(text: str) -> datetime:
    """Return the time in an answer; botocore's own parser takes more than half of the time of a long listing."""
    if text[10:11] == "T" and text.endswith("Z"):
        return datetime.fromisoformat(text)
    return parse_timestamp(text)


def open_client(location: StoreLocation, connect_s: float, read_s: float) -> S3Client:
    """Return a client for one server. Raises StoreRefused when no credentials can be found."""
    custom = location.endpoint is not None
    config = Config(
        region_name=location.region,
        signature_version="s3v4",
        s3={"addressing_style": "path" if custom else "auto"},
        # The default CRC32 is rejected, or stored as part of the object, by some servers; sha256 is ours.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"mode": "standard", "total_max_attempts": 1},  # Calls.run tries again: bodies need it too
        connect_timeout=connect_s,
        read_timeout=read_s,
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
        proxies={} if location.is_loopback else None,
    )
    with at_the_door("open", location):
        outer = botocore.session.get_session()
        outer.register_component("data_loader", _loader())
        outer.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_instant)
        session = boto3.session.Session(botocore_session=outer)
        if session.get_credentials() is None:
            raise StoreRefused(
                f"open {location.uri()} at {location.server}: no credentials found; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY (the local server of `draftworks up` takes any value)"
            )
        client = session.client("s3", endpoint_url=location.endpoint, config=config)
    if custom:
        client.meta.events.register("before-call.s3", _follow_no_redirect)
    return client


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Let a wrong region, or a server that sends us elsewhere, be told and not worked around with every request.

    botocore asks such a server for the bucket's region; one that redirects that question too it asks without end.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


class Calls:
    """A client with the location and the patience of its calls; safe to share between threads."""

    def __init__(self, location: StoreLocation, patience: Patience) -> None:
        """Open the client; nothing is sent yet."""
        self.location = location
        self.patience = patience
        self.client = open_client(location, patience.connect_s, patience.read_s)

    def run(self, action: str, key: str, call: Callable[[], T]) -> T:
        """Return what call returns; call holds client calls only and may be repeated."""
        for attempt in Retrying(
            stop=stop_after_attempt(self.patience.attempts),
            wait=wait_random_exponential(multiplier=self.patience.first_wait_s, max=self.patience.longest_wait_s),
            retry=retry_if_exception_type(StoreUnavailable),
            reraise=True,
        ):
            with attempt, at_the_door(action, self.location, key):
                return call()
        raise AssertionError("the last attempt returns or raises")

    def first_contact(self) -> Calls:
        """Return calls that give up soon, for the first word with a server that may not be there."""
        brief = Patience(
            attempts=FIRST_CONTACT_ATTEMPTS,
            first_wait_s=self.patience.first_wait_s,
            longest_wait_s=self.patience.longest_wait_s,
            connect_s=self.patience.first_contact_s,
            read_s=self.patience.first_contact_s,
        )
        return Calls(self.location, brief)
