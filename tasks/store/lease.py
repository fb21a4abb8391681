"""Run leases: of two runs that want the same artifact, one works and the other waits.

`leases/<kind>/<fingerprint>/<n>.json`, n = 00000001, 00000002, ...; the highest n is the lease:

    {"format_version":1,"holder":"host-4242-9f0c...","released":false,"renewed":17,"ttl_s":60.0}

A holder renews its own object; a lease that was not renewed for ttl_s, by the server's own clock, has run out, and
whoever creates the next number holds it. The last number stays as a mark, so that numbers only grow. Creating needs
If-None-Match: *, and nothing else, so this also works on servers that ignore If-Match. Where If-None-Match is ignored
too, a holder reads its object back after a moment and the last writer holds it: rarely, two runs may then do the same
work.

A lease saves work; it does not guard the artifact. Objects are named by fingerprint and written whole, so a holder
that was paused past its expiry writes what its successor writes.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import ArtifactCorrupt, PreconditionFailed, StoreError, StoreUnavailable
from tasks.store.artifact import ArtifactRef
from tasks.store.manifest import FORMAT_VERSION, dump, load
from tasks.store.objects import ObjectStore

logger = logging.getLogger(__name__)

LEASES_FOLDER = "leases"
DEFAULT_TTL_S = 60.0
DEFAULT_WAIT_S = 6 * 3600.0
RENEWALS_PER_TTL = 4
LONGEST_POLL_S = 5.0
MAX_LOOKS = 20
SETTLE_S = 1.0  # longer than a small write takes, so that the read-back sees who wrote last


class _Claim(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    holder: str
    ttl_s: float = Field(gt=0)
    renewed: int = 0
    released: bool = False


@dataclass(frozen=True)
class _Seen:
    number: int
    claim: _Claim
    age_s: float

    @property
    def is_free(self) -> bool:
        return self.claim.released or self.age_s > self.claim.ttl_s


class Lease:
    """A lease that this process holds; its thread renews it until it is released or lost."""

    def __init__(self, store: ObjectStore, ref: ArtifactRef, claim: _Claim, number: int) -> None:
        """Hold number; start renewing."""
        self._store, self._ref, self._claim, self._number = store, ref, claim, number
        self._stop = threading.Event()
        self._lost: str | None = None
        self._good_until = time.monotonic() + claim.ttl_s
        self._thread = threading.Thread(target=self._renew_until_stopped, name=f"lease {ref}", daemon=True)
        self._thread.start()

    @property
    def holder(self) -> str:
        """Return the id that the lease's object carries."""
        return self._claim.holder

    def ensure_held(self) -> None:
        """Return while the lease is held. Raises PreconditionFailed when it ran out and may be somebody else's."""
        lost = self._lost
        if lost is None and time.monotonic() > self._good_until:
            lost = f"it was not renewed for {self._claim.ttl_s:.0f} s"
        if lost is not None:
            raise PreconditionFailed(f"hold the lease of {self._ref}: {lost}; run again, what is stored is kept")

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._claim.ttl_s / RENEWALS_PER_TTL):
            try:
                self._renew()
            except StoreUnavailable as error:
                logger.warning("lease of %s not renewed, trying again: %s", self._ref, error)
            except StoreError as error:
                self._lost = str(error)
            if self._lost is not None:
                return

    def _renew(self) -> None:
        asked = time.monotonic()
        if _highest(self._store, self._ref) > self._number:
            self._lost = "another run took it over after it ran out"
            return
        self._claim = self._claim.model_copy(update={"renewed": self._claim.renewed + 1})
        self._store.put_bytes(_key(self._ref, self._number), dump(self._claim))
        self._good_until = asked + self._claim.ttl_s

    def release(self) -> None:
        """Stop renewing and let the next one in. A lease that was lost, or can't be released, runs out by itself."""
        self._stop.set()
        self._thread.join()
        if self._lost is not None:
            return
        released = self._claim.model_copy(update={"released": True})
        try:
            self._store.put_bytes(_key(self._ref, self._number), dump(released))
            older = _numbers(self._store, self._ref, self._number - 1)
            self._store.delete([_key(self._ref, number) for number in older])
        except StoreError as error:
            logger.warning("lease of %s not released, it runs out in %.0f s: %s", self._ref, released.ttl_s, error)


@contextmanager
def hold_lease(
    store: ObjectStore, ref: ArtifactRef, *, ttl_s: float = DEFAULT_TTL_S, wait_s: float = DEFAULT_WAIT_S
) -> Iterator[Lease]:
    """Hold the lease of an artifact; wait up to wait_s for another holder.

    After a wait, look whether the artifact is done before making it.
    Raises PreconditionFailed: another run still holds it after wait_s.
    """
    lease = _acquire(store, ref, ttl_s, wait_s)
    try:
        yield lease
    finally:
        lease.release()


def _acquire(store: ObjectStore, ref: ArtifactRef, ttl_s: float, wait_s: float) -> Lease:
    holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    claim = _Claim(holder=holder, ttl_s=ttl_s)
    deadline = time.monotonic() + wait_s
    while True:
        seen = _look(store, ref)
        if seen is None or seen.is_free:
            number = seen.number + 1 if seen else 1
            if _create(store, ref, number, claim):
                return Lease(store, ref, claim, number)
            continue  # somebody was faster: look who
        if time.monotonic() >= deadline:
            raise PreconditionFailed(
                f"lease {ref} in {store.uri(_folder(ref))}: run {seen.claim.holder} holds it and renewed it "
                f"{seen.age_s:.0f} s ago; wait for that run, or stop it and wait {seen.claim.ttl_s:.0f} s"
            )
        time.sleep(min(LONGEST_POLL_S, seen.claim.ttl_s / RENEWALS_PER_TTL, max(0.05, deadline - time.monotonic())))


def _create(store: ObjectStore, ref: ArtifactRef, number: int, claim: _Claim) -> bool:
    key, data = _key(ref, number), dump(claim)
    if store.probe().if_none_match:
        return store.put_if_absent(key, data)
    if store.size(key) is not None:
        return False
    store.put_bytes(key, data)
    time.sleep(SETTLE_S)
    stored = store.get_versioned(key)
    return stored is not None and stored[0] == data


def _look(store: ObjectStore, ref: ArtifactRef) -> _Seen | None:
    """Return the newest lease of an artifact, None when there is none."""
    for _ in range(MAX_LOOKS):  # again if its successor deleted it meanwhile
        number = _highest(store, ref)
        stored = store.get_aged(_key(ref, number)) if number else None
        if number == 0 or stored is not None:
            break
    if number == 0:
        return None
    if stored is None:
        raise StoreError(f"lease {ref}: {store.uri(_key(ref, number))} is listed but can't be read; see the server")
    data, age_s = stored
    try:
        claim = load(_Claim, data, store.uri(_key(ref, number)))
    except ArtifactCorrupt:  # cut off while it was written: it counts until it is old
        claim = _Claim(holder="unreadable", ttl_s=DEFAULT_TTL_S)
    return _Seen(number, claim, age_s)


def _folder(ref: ArtifactRef) -> str:
    return f"{LEASES_FOLDER}/{ref.prefix}"


def _key(ref: ArtifactRef, number: int) -> str:
    return f"{_folder(ref)}{number:08d}.json"


def _numbers(store: ObjectStore, ref: ArtifactRef, up_to: int) -> list[int]:
    names = [key.removeprefix(_folder(ref)).removesuffix(".json") for key, _ in store.list(_folder(ref))]
    return [int(name) for name in names if name.isdecimal() and int(name) <= up_to]


def _highest(store: ObjectStore, ref: ArtifactRef) -> int:
    return max(_numbers(store, ref, 10**8), default=0)


def leased(store: ObjectStore) -> list[ArtifactRef]:
    """Return the artifacts that running leases hold; what gc must not touch."""
    refs: dict[str, ArtifactRef] = {}
    for key, _ in store.list(f"{LEASES_FOLDER}/"):
        kind, _, rest = key.removeprefix(f"{LEASES_FOLDER}/").partition("/")
        try:
            ref = ArtifactRef(kind=kind, fingerprint=rest.partition("/")[0])
        except ValidationError:
            continue
        refs[ref.prefix] = ref
    seen = {prefix: _look(store, ref) for prefix, ref in refs.items()}
    return [refs[prefix] for prefix, found in seen.items() if found is not None and not found.is_free]
