"""Carries out a retention plan; each removal is checked again right before it.

A run writes its marker before it looks for artifacts. So an artifact is removed in this order: take its lease, look for
markers, delete the manifest, look for markers again, and only then delete the files. A run that began in between and
found the manifest is seen at the second look, and the manifest is put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tasks.errors import ArtifactCorrupt, PreconditionFailed
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.claims import expired_markers, running
from tasks.store.inventory import champion_fingerprints, ref_of
from tasks.store.lease import hold_lease
from tasks.store.manifest import MANIFEST_NAME
from tasks.store.objects import ObjectStore, Upload
from tasks.store.retention import Removal

IN_USE = "a run uses it now"
REMOVALS_AT_ONCE = 8


@dataclass(frozen=True)
class Outcome:
    """What became of a removal; kept_because is None when it was carried out."""

    removal: Removal
    kept_because: str | None = None


def carry_out(store: ObjectStore, removals: Iterable[Removal]) -> Iterator[Outcome]:
    """Remove several at once, and say what became of each. An interruption leaves nothing that counts as done."""
    with ThreadPoolExecutor(REMOVALS_AT_ONCE, thread_name_prefix="gc") as pool:
        try:
            yield from pool.map(lambda removal: Outcome(removal, _remove(store, removal)), removals)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _remove(store: ObjectStore, removal: Removal) -> str | None:
    """Return why it was kept, None when it is removed."""
    if removal.upload is not None:
        return _abort(store, removal.upload)
    if removal.ref is not None:
        return _delete_leased(store, removal, removal.ref)
    return _delete_markers(store, removal.keys)


def _delete_leased(store: ObjectStore, removal: Removal, ref: ArtifactRef) -> str | None:
    """Hold the lease, so that nobody makes the artifact meanwhile; delete."""
    try:
        with hold_lease(store, ref, wait_s=0) as lease:
            if is_in_use(store, ref, besides=lease.holder):
                return IN_USE
            if removal.keys:
                store.delete(removal.keys)
                return None
            if removal.rule == "unfinished" and _is_finished(store, ref):
                return "it was finished meanwhile"
            if ref.fingerprint in champion_fingerprints(store):
                return "it became a champion meanwhile"
            return _delete_artifact(store, ref, lease.holder)
    except PreconditionFailed:
        return IN_USE


def _delete_artifact(store: ObjectStore, ref: ArtifactRef, holder: str) -> str | None:
    key = ref.prefix + MANIFEST_NAME
    manifest = store.get_versioned(key)
    if manifest is not None:
        store.delete([key])
        if is_in_use(store, ref, besides=holder):
            store.put_bytes(key, manifest[0])
            return IN_USE
    Artifacts(store).delete(ref)
    return None


def is_in_use(store: ObjectStore, ref: ArtifactRef, besides: str = "") -> bool:
    """Return whether a run other than the named holder makes or uses an artifact."""
    return any(ref == held.ref or ref in held.uses for held in running(store) if held.holder != besides)


def _is_finished(store: ObjectStore, ref: ArtifactRef) -> bool:
    try:
        return Artifacts(store).find(ref) is not None
    except ArtifactCorrupt:
        return False


def _abort(store: ObjectStore, upload: Upload) -> str | None:
    ref = ref_of(upload.key)
    if ref is not None and is_in_use(store, ref):
        return IN_USE
    store.abort_upload(upload)
    return None


def _delete_markers(store: ObjectStore, keys: Sequence[str]) -> str | None:
    if not set(keys) <= set(expired_markers(store)):
        return IN_USE
    store.delete(keys)
    return None
