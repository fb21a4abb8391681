"""Run leases: of two runs that want the same artifact, one works and the other waits.

A lease is the highest number in `leases/<kind>/<fingerprint>/` (tasks/store/claims.py). A holder renews its own
object; a lease that was not renewed for ttl_s, by the server's own clock, has run out, and whoever creates the next
number holds it; so does whoever sees, on the same machine, that its holder was killed. The last number stays as a mark,
so that numbers only grow. Creating needs If-None-Match: *, and nothing else, so this also works on servers that ignore
If-Match. Where If-None-Match is ignored too, a holder reads its object back after a moment and the last writer holds
it: rarely, two runs may then do the same work.

A lease saves work; it does not guard the artifact. Objects are named by fingerprint and written whole, so a holder
that was paused past its expiry writes what its successor writes.

A whole run holds a marker as well, a lease on an artifact of kind `run` that does not exist. It names what the run
reads and makes, so that nothing of it is removed between the run's stages.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tasks.errors import PreconditionFailed, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.claims import (
    DEFAULT_TTL_S,
    RUN_KIND,
    Claim,
    highest,
    lease_folder,
    lease_key,
    look,
    numbers,
    this_place,
)
from tasks.store.manifest import dump
from tasks.store.objects import ObjectStore

logger = logging.getLogger(__name__)

DEFAULT_WAIT_S = 6 * 3600.0
RENEWALS_PER_TTL = 4
LONGEST_POLL_S = 5.0
RUN_TTL_S = 600.0  # longer than a restart of the store takes: a run that lives keeps what it uses
SETTLE_S = 1.0  # longer than a small write takes, so that the read-back sees who wrote last


class Lease:
    """A lease that this process holds; its thread renews it until it is released or lost."""

    def __init__(self, store: ObjectStore, ref: ArtifactRef, claim: Claim, number: int) -> None:
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
            except StoreError as error:
                logger.warning("lease of %s not renewed, trying again: %s", self._ref, error)
            if self._lost is not None:
                return

    def _renew(self) -> None:
        asked = time.monotonic()
        if highest(self._store, self._ref) > self._number:
            self._lost = "another run took it over after it ran out"
            return
        self._claim = self._claim.model_copy(update={"renewed": self._claim.renewed + 1})
        self._store.put_bytes(lease_key(self._ref, self._number), dump(self._claim))
        self._good_until = asked + self._claim.ttl_s

    def stop(self) -> None:
        """Stop renewing."""
        self._stop.set()
        self._thread.join()

    def release(self) -> None:
        """Stop renewing and let the next one in. A lease that was lost, or can't be released, runs out by itself."""
        self.stop()
        if self._lost is not None:
            return
        released = self._claim.model_copy(update={"released": True})
        try:
            self._store.put_bytes(lease_key(self._ref, self._number), dump(released))
            older = numbers(self._store, self._ref, self._number - 1)
            self._store.delete([lease_key(self._ref, number) for number in older])
        except StoreError as error:
            logger.warning("lease of %s not released, it runs out in %.0f s: %s", self._ref, released.ttl_s, error)


@contextmanager
def hold_lease(
    store: ObjectStore,
    ref: ArtifactRef,
    *,
    uses: Iterable[ArtifactRef] = (),
    ttl_s: float = DEFAULT_TTL_S,
    wait_s: float = DEFAULT_WAIT_S,
) -> Iterator[Lease]:
    """Hold the lease of an artifact; wait up to wait_s for another holder. uses: what it is made from.

    After a wait, look whether the artifact is done before making it.
    Raises PreconditionFailed: another run still holds it after wait_s.
    """
    lease = _acquire(store, ref, _claim(uses, ttl_s), wait_s)
    try:
        yield lease
    finally:
        lease.release()


@contextmanager
def hold_marker(store: ObjectStore, uses: Iterable[ArtifactRef], *, ttl_s: float = RUN_TTL_S) -> Iterator[Lease]:
    """Mark a run, and all that it uses, as in use until it ends; the marker of a killed run runs out."""
    claim = _claim(uses, ttl_s)
    ref = ArtifactRef(kind=RUN_KIND, fingerprint=hashlib.sha256(claim.holder.encode()).hexdigest())
    store.put_bytes(lease_key(ref, 1), dump(claim))  # the holder's id is random, so nobody else wants this one
    lease = Lease(store, ref, claim, 1)
    try:
        yield lease
    finally:
        lease.stop()
        try:
            store.delete([lease_key(ref, 1)])
        except StoreError as error:
            logger.warning("marker of this run not removed, it runs out in %.0f s: %s", ttl_s, error)


def _claim(uses: Iterable[ArtifactRef], ttl_s: float) -> Claim:
    holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
    return Claim(holder=holder, ttl_s=ttl_s, uses=tuple(uses), place=this_place(), pid=os.getpid())


def _acquire(store: ObjectStore, ref: ArtifactRef, claim: Claim, wait_s: float) -> Lease:
    deadline = time.monotonic() + wait_s
    while True:
        seen = look(store, ref)
        if seen is None or seen.is_free or seen.claim.is_dead:
            number = seen.number + 1 if seen else 1
            if _create(store, ref, number, claim):
                return Lease(store, ref, claim, number)
            continue  # somebody was faster: look who
        if time.monotonic() >= deadline:
            raise PreconditionFailed(
                f"lease {ref} in {store.uri(lease_folder(ref))}: run {seen.claim.holder} holds it and renewed it "
                f"{seen.age_s:.0f} s ago; wait for that run, or stop it and wait {seen.claim.ttl_s:.0f} s"
            )
        time.sleep(min(LONGEST_POLL_S, seen.claim.ttl_s / RENEWALS_PER_TTL, max(0.05, deadline - time.monotonic())))


def _create(store: ObjectStore, ref: ArtifactRef, number: int, claim: Claim) -> bool:
    key, data = lease_key(ref, number), dump(claim)
    if store.probe().if_none_match:
        return store.put_if_absent(key, data)
    if store.size(key) is not None:
        return False
    store.put_bytes(key, data)
    time.sleep(SETTLE_S)
    stored = store.get_versioned(key)
    return stored is not None and stored[0] == data
