"""Champion pointers: the only objects that change; each names the draft in service for one target.

`champions/<name>.json`:

    {"current":{"fingerprint":"...","kind":"draft"},"format_version":1,"history":[{"fingerprint":"...","why":"..."}],
     "reason":"acceptance length 1.71 against 1.64","updated":"2026-01-31T02:10:00Z"}

A pointer is moved under a condition, so that of two writers one loses and sees it. Where the server does not honour
the condition, moving is refused unless the caller vouches for a single writer.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.errors import PreconditionFailed, StoreRefused
from tasks.store.artifact import ArtifactRef
from tasks.store.manifest import FORMAT_VERSION, dump, load
from tasks.store.objects import ObjectStore

CHAMPIONS_FOLDER = "champions"


class Pointer(BaseModel):
    """What a name points to now, and what it pointed to before, newest last."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format_version: int = FORMAT_VERSION
    current: ArtifactRef | None
    history: tuple[dict[str, Any], ...] = ()
    updated: str = ""
    reason: str = ""


class Pointers:
    """The champion pointers of one store."""

    def __init__(self, store: ObjectStore) -> None:
        """Use a store; nothing is sent yet."""
        self._store = store

    def key(self, name: str) -> str:
        """Return the key of a pointer."""
        return f"{CHAMPIONS_FOLDER}/{name}.json"

    def names(self) -> list[str]:
        """Return the names of all pointers."""
        keys = [key for key, _ in self._store.list(f"{CHAMPIONS_FOLDER}/")]
        return [key.removeprefix(f"{CHAMPIONS_FOLDER}/").removesuffix(".json") for key in keys if key.endswith(".json")]

    def read(self, name: str) -> tuple[Pointer, str] | None:
        """Return a pointer and the ETag that moves it, None when there is none. Raises ArtifactCorrupt."""
        stored = self._store.get_versioned(self.key(name))
        if stored is None:
            return None
        return load(Pointer, stored[0], self._store.uri(self.key(name))), stored[1]

    def move(self, name: str, pointer: Pointer, expected_etag: str | None, *, single_writer: bool = False) -> None:
        """Write a pointer that was read with expected_etag (None: that must not be there yet).

        single_writer: the caller vouches that nobody else writes; needed where conditions are not honoured.
        Raises PreconditionFailed: it changed meanwhile. Raises StoreRefused: the server honours no condition.
        """
        features = self._store.probe()
        key, data = self.key(name), dump(pointer)
        honoured = features.if_none_match if expected_etag is None else features.if_match
        if not honoured and not single_writer:
            condition = "If-None-Match" if expected_etag is None else "If-Match"
            raise StoreRefused(
                f"move {self._store.uri(key)} at {self._store.location.server}: this server does not honour "
                f"{condition} on writes, so two writers could overwrite each other unseen; use a server that does, or "
                "say in the recipe that a single writer is guaranteed"
            )
        if not self._write(key, data, expected_etag, honoured):
            raise PreconditionFailed(
                f"move {self._store.uri(key)}: it changed since it was read; read it again and decide again"
            )

    def _write(self, key: str, data: bytes, expected_etag: str | None, honoured: bool) -> bool:
        if honoured and expected_etag is None:
            return self._store.put_if_absent(key, data)
        if honoured and expected_etag is not None:
            return self._store.put_if_match(key, data, expected_etag)
        # A single writer is vouched for; a look first still catches one that forgot about itself.
        stored = self._store.get_versioned(key)
        if (stored[1] if stored else None) != expected_etag:
            return False
        self._store.put_bytes(key, data)
        return True
