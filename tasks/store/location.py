"""Where the store is, and how patient its calls are."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tasks.errors import RecipeError, StoreError
from tasks.store.manifest import relative_path

MIB = 1024 * 1024
MIN_PART_BYTES = 5 * MIB  # S3 refuses smaller ones, the last excepted
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class StoreLocation:
    """One prefix in one bucket of one server; endpoint None is AWS itself. Raises RecipeError if it cannot be."""

    endpoint: str | None
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        """Check each field; a prefix loses its outer slashes."""
        if self.endpoint is not None:
            url = urlsplit(self.endpoint)
            if url.scheme not in ("http", "https") or not url.hostname or url.query or "@" in url.netloc:
                raise RecipeError(f"S3 endpoint {self.endpoint!r}: expected http(s)://host[:port], no user, no query")
        if not _BUCKET.fullmatch(self.bucket):
            raise RecipeError(f"S3 bucket {self.bucket!r}: expected 3 to 63 of a-z, 0-9, dot and dash")
        object.__setattr__(self, "prefix", self.prefix.strip("/"))
        if self.prefix:
            try:
                relative_path(self.prefix)
            except ValueError as error:
                raise RecipeError(f"S3 prefix: {error}") from error

    @property
    def server(self) -> str:
        """Return the server's name for messages."""
        return self.endpoint or f"AWS S3 in {self.region}"

    @property
    def is_loopback(self) -> bool:
        """Return whether the server is on this machine, where no proxy may stand between."""
        return self.endpoint is not None and urlsplit(self.endpoint).hostname in ("127.0.0.1", "localhost", "::1")

    def full_key(self, key: str) -> str:
        """Return the key inside the bucket. Raises StoreError if it would leave the prefix."""
        try:
            relative_path(key)
        except ValueError as error:
            raise StoreError(f"key {key!r} in {self.uri()}: {error}; keys stay below their prefix") from error
        return f"{self.prefix}/{key}" if self.prefix else key

    def uri(self, key: str = "") -> str:
        """Return s3://bucket/prefix/key."""
        return "/".join(part for part in (f"s3://{self.bucket}", self.prefix, key) if part)


@dataclass(frozen=True)
class Patience:
    """How long a call waits and how often it is tried; only transient answers are tried again."""

    attempts: int = 6
    first_wait_s: float = 0.2
    longest_wait_s: float = 8.0
    connect_s: float = 5.0
    read_s: float = 30.0
    first_contact_s: float = 5.0
    """The only wait, tried twice, when a server is spoken to for the first time."""
    part_bytes: int = 16 * MIB
    """What is sent again when a part of an upload is lost; peak memory of a transfer is about 5 parts."""

    def __post_init__(self) -> None:
        """Check what servers insist on."""
        if self.part_bytes < MIN_PART_BYTES or self.attempts < 1:
            raise RecipeError(f"{self}: expected parts of at least {MIN_PART_BYTES} bytes and at least one attempt")
