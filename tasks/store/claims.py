"""What leases say: which artifacts are held now, by whom, and what else their holders use.

`leases/<kind>/<fingerprint>/<n>.json`, n = 00000001, 00000002, ...; the highest n is the lease:

    {"format_version":1,"holder":"host-4242-9f0c...","pid":4242,"place":"5f0e...","released":false,"renewed":17,
     "ttl_s":60.0,"uses":[{"fingerprint":"...","kind":"corpus"}]}

`leases/run/<random>/00000001.json` is the same for a whole run, which also uses things between its stages.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import ArtifactCorrupt, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.manifest import FORMAT_VERSION, load
from tasks.store.objects import Entry, ObjectStore

LEASES_FOLDER = "leases"
RUN_KIND = "run"
DEFAULT_TTL_S = 60.0
LONGEST_TTL_S = 3600.0  # a lease that is older by the server's clock has run out, whatever it says
MAX_LOOKS = 20
UNREADABLE = "unreadable"


class Claim(BaseModel):
    """What a holder writes; uses: the artifacts that it needs beside the one it holds; place, pid: where it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    holder: str
    ttl_s: float = Field(gt=0, le=LONGEST_TTL_S)
    renewed: int = 0
    released: bool = False
    uses: tuple[ArtifactRef, ...] = ()
    place: str = ""
    pid: int = 0

    @property
    def is_dead(self) -> bool:
        """Return whether its holder ran in this place and has ended; elsewhere nobody can know."""
        return bool(self.place) and self.place == this_place() and not Path(f"/proc/{self.pid}").exists()


@cache
def this_place() -> str:
    """Return what says that a process id means the same process here: host, boot and PID namespace; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        parts = (socket.gethostname(), boot, os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Seen:
    """The newest claim on an artifact, and when it was written."""

    number: int
    claim: Claim
    age_s: float

    @property
    def is_free(self) -> bool:
        """Return whether somebody else may take the lease."""
        return self.claim.released or self.age_s > self.claim.ttl_s


@dataclass(frozen=True)
class Running:
    """A lease that is held now."""

    ref: ArtifactRef
    holder: str
    uses: tuple[ArtifactRef, ...]


def lease_folder(ref: ArtifactRef) -> str:
    """Return the key prefix of an artifact's leases."""
    return f"{LEASES_FOLDER}/{ref.prefix}"


def lease_key(ref: ArtifactRef, number: int) -> str:
    """Return the key of one lease of an artifact."""
    return f"{lease_folder(ref)}{number:08d}.json"


def numbers(store: ObjectStore, ref: ArtifactRef, up_to: int) -> list[int]:
    """Return the numbers of an artifact's leases."""
    names = [key.removeprefix(lease_folder(ref)).removesuffix(".json") for key, _ in store.list(lease_folder(ref))]
    return [int(name) for name in names if name.isdecimal() and int(name) <= up_to]


def highest(store: ObjectStore, ref: ArtifactRef) -> int:
    """Return the number of an artifact's lease, 0 when there is none."""
    return max(numbers(store, ref, 10**8), default=0)


def look(store: ObjectStore, ref: ArtifactRef) -> Seen | None:
    """Return the newest lease of an artifact, None when there is none."""
    for _ in range(MAX_LOOKS):  # again if its successor deleted it meanwhile
        number = highest(store, ref)
        stored = store.get_aged(lease_key(ref, number)) if number else None
        if number == 0 or stored is not None:
            break
    if number == 0:
        return None
    if stored is None:
        raise StoreError(
            f"lease {ref}: {store.uri(lease_key(ref, number))} is listed but can't be read; see the server"
        )
    data, age_s = stored
    try:
        claim = load(Claim, data, store.uri(lease_key(ref, number)))
    except ArtifactCorrupt:  # cut off while it was written: it counts until it is old
        claim = Claim(holder=UNREADABLE, ttl_s=DEFAULT_TTL_S)
    return Seen(number, claim, age_s)


def last_uses(store: ObjectStore, ref: ArtifactRef) -> tuple[ArtifactRef, ...]:
    """Return what the last holder of an artifact's lease made it from; empty when that is not known."""
    seen = look(store, ref)
    return seen.claim.uses if seen else ()


def running(store: ObjectStore) -> list[Running]:
    """Return the leases that are held now. Raises StoreError: one can't be read, so what it uses is not known."""
    found = []
    for ref, entry in _newest(store).items():
        if entry.age_s > LONGEST_TTL_S:
            continue
        seen = look(store, ref)
        if seen is None or seen.is_free:
            continue
        if seen.claim.holder == UNREADABLE:
            raise StoreError(
                f"read {store.uri(entry.key)}: the lease of a run was cut off, so what that run uses is not known; "
                f"try again in {seen.claim.ttl_s:.0f} s"
            )
        found.append(Running(ref, seen.claim.holder, seen.claim.uses))
    return found


def leased(store: ObjectStore) -> list[ArtifactRef]:
    """Return the artifacts that running leases hold or use; what gc must not touch. Raises as running does."""
    return list(dict.fromkeys(ref for held in running(store) for ref in (held.ref, *held.uses)))


def expired_markers(store: ObjectStore) -> list[str]:
    """Return the keys of the markers of runs that ended without removing theirs."""
    keys = []
    for ref, entry in _newest(store, f"{LEASES_FOLDER}/{RUN_KIND}/").items():
        seen = look(store, ref)
        if seen is not None and seen.is_free:
            keys.append(entry.key)
    return keys


def _newest(store: ObjectStore, prefix: str = f"{LEASES_FOLDER}/") -> dict[ArtifactRef, Entry]:
    """Return the object of the highest number per artifact; the listing is in key order."""
    found: dict[ArtifactRef, Entry] = {}
    for entry in store.entries(prefix):
        kind, _, rest = entry.key.removeprefix(f"{LEASES_FOLDER}/").partition("/")
        try:
            found[ArtifactRef(kind=kind, fingerprint=rest.partition("/")[0])] = entry
        except ValidationError:
            continue
    return found
