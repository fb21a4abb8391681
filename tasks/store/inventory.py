"""What a store holds, read once: the artifacts and their state, what is in use, what unfinished work left.

Only what Draftworks writes is looked at: `<kind>/<fingerprint>/...` of the kinds of the plan, leases and champions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tasks.errors import ArtifactCorrupt, StoreError
from tasks.recipe.plan import Kind
from tasks.store.artifact import ArtifactRef
from tasks.store.claims import expired_markers, last_uses, leased
from tasks.store.manifest import MANIFEST_NAME, PARTS_FOLDER, Manifest, load_manifest
from tasks.store.objects import Entry, ObjectStore, Upload
from tasks.store.pointers import Pointers

KINDS: tuple[Kind, ...] = get_args(Kind)
READS_AT_ONCE = 8
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
State = Literal["finished", "damaged", "unfinished", "newer"]


@dataclass(frozen=True)
class Stored:
    """One artifact as it lies in the store.

    damaged: the manifest is there, the files are not those it lists. newer: a newer Draftworks wrote it.
    uses: what its unfinished work was made from, as far as its last lease says so.
    """

    ref: ArtifactRef
    objects: tuple[Entry, ...]
    state: State
    manifest: Manifest | None = None
    uses: tuple[ArtifactRef, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Return the size of all its objects."""
        return sum(entry.size_bytes for entry in self.objects)

    @property
    def age_s(self) -> float:
        """Return the age of its newest object."""
        return min(entry.age_s for entry in self.objects)

    @property
    def has_parts(self) -> bool:
        """Return whether unfinished work can be continued."""
        return any(entry.key.startswith(f"{self.ref.prefix}{PARTS_FOLDER}/") for entry in self.objects)

    def unlisted(self) -> tuple[Entry, ...]:
        """Return the objects of a finished artifact that its manifest does not list."""
        listed = {entry.path for entry in self.manifest.files} if self.manifest else set()
        listed.add(MANIFEST_NAME)
        return tuple(entry for entry in self.objects if entry.key.removeprefix(self.ref.prefix) not in listed)


@dataclass(frozen=True)
class Inventory:
    """What was seen. uploads: None where the server cannot list them."""

    stored: Mapping[ArtifactRef, Stored]
    in_use: frozenset[ArtifactRef] = frozenset()
    champions: frozenset[str] = frozenset()
    uploads: tuple[Upload, ...] | None = ()
    markers: tuple[str, ...] = ()


def ref_of(key: str) -> ArtifactRef | None:
    """Return the artifact that an object belongs to, None for an object that is none of ours."""
    kind, _, rest = key.partition("/")
    fingerprint, slash, _ = rest.partition("/")
    if kind not in KINDS or not slash or not _FINGERPRINT.fullmatch(fingerprint):
        return None
    return ArtifactRef(kind=kind, fingerprint=fingerprint)


def take_inventory(store: ObjectStore) -> Inventory:
    """Return what the store holds. Raises StoreError: a lease or a pointer that can't be understood."""
    in_use = frozenset(leased(store))  # first, so that what is in use now is not missed
    objects: dict[ArtifactRef, list[Entry]] = {}
    for kind in KINDS:
        for entry in store.entries(f"{kind}/"):
            if ref := ref_of(entry.key):
                objects.setdefault(ref, []).append(entry)
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="inventory") as pool:
        stored = pool.map(lambda item: _read(store, *item), objects.items())
        return Inventory(
            stored={found.ref: found for found in stored},
            in_use=in_use,
            champions=champion_fingerprints(store),
            uploads=_our_uploads(store.uploads()),
            markers=tuple(expired_markers(store)),
        )


def _our_uploads(uploads: Iterable[Upload] | None) -> tuple[Upload, ...] | None:
    return None if uploads is None else tuple(upload for upload in uploads if ref_of(upload.key))


def _read(store: ObjectStore, ref: ArtifactRef, objects: Sequence[Entry]) -> Stored:
    sizes = {entry.key.removeprefix(ref.prefix): entry.size_bytes for entry in objects}
    stored = store.get_versioned(ref.prefix + MANIFEST_NAME) if MANIFEST_NAME in sizes else None
    manifest: Manifest | None = None
    if stored is not None and stored[0].endswith(b"}\n"):
        try:
            manifest = load_manifest(stored[0], store.uri(ref.prefix + MANIFEST_NAME))
        except ArtifactCorrupt:
            manifest = None
        except StoreError:  # its message is about one version; what matters here is that it is not to be judged
            return Stored(ref, tuple(objects), "newer")
    if manifest is None or (manifest.kind, manifest.fingerprint) != (ref.kind, ref.fingerprint):
        return Stored(ref, tuple(objects), "unfinished", uses=last_uses(store, ref))
    is_whole = all(sizes.get(entry.path) == entry.size_bytes for entry in manifest.files)
    return Stored(ref, tuple(objects), "finished" if is_whole else "damaged", manifest)


def champion_fingerprints(store: ObjectStore) -> frozenset[str]:
    """Return every fingerprint that a champion pointer names, now or in its history."""
    pointers = Pointers(store)
    found: set[str] = set()
    for name in pointers.names():
        read = pointers.read(name)
        if read is not None:
            found.update(_fingerprints(read[0].model_dump(mode="json")))
    return frozenset(found)


def _fingerprints(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value} if _FINGERPRINT.fullmatch(value) else set()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {found for item in inner for found in _fingerprints(item)}
