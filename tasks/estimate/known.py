"""What the store and the scratch folder tell an estimate: what is made, what is begun, what earlier runs took."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tasks.errors import StoreError
from tasks.estimate.pace import Circumstances, PastRun, past_run
from tasks.recipe.plan import Kind, Plan
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Manifest

# Earlier artifacts of a kind that are looked at; an old store may hold thousands.
MOST_READ = 40
READ_AT_ONCE = 4


@dataclass(frozen=True)
class Known:
    """What is there of a plan, by kind."""

    done: Mapping[Kind, Manifest]
    past: Mapping[Kind, tuple[PastRun, ...]]
    on_scratch: Mapping[Kind, int]
    begun_bytes: int
    """Bytes in the store of shards and epochs whose artifact is not finished."""


def look(plan: Plan, artifacts: Artifacts, scratch: Path, now: Circumstances) -> Known:
    """Return what the store and the scratch folder hold of a plan. Raises StoreError, as Artifacts.find does."""
    kinds = [kind for kind in plan.links if kind != "release"]
    refs = {kind: ArtifactRef(kind=kind, fingerprint=plan.fingerprint(kind)) for kind in kinds}
    with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="known") as pool:
        found = dict(zip(kinds, pool.map(artifacts.find, refs.values()), strict=True))
    missing = [kind for kind, manifest in found.items() if manifest is None]
    return Known(
        done={kind: manifest for kind, manifest in found.items() if manifest is not None},
        past={kind: _past(kind, artifacts, now) for kind in missing},
        on_scratch={kind: _folder_bytes(scratch / kind / ref.fingerprint[:16]) for kind, ref in refs.items()},
        begun_bytes=sum(_part_bytes(artifacts, refs[kind]) for kind in missing),
    )


def _past(kind: Kind, artifacts: Artifacts, now: Circumstances) -> tuple[PastRun, ...]:
    with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="past") as pool:
        read = pool.map(lambda ref: _read(artifacts, ref), islice(artifacts.refs(kind), MOST_READ))
        runs = [past_run(manifest, now) for manifest in read if manifest is not None]
    return tuple(run for run in runs if run is not None)


def _read(artifacts: Artifacts, ref: ArtifactRef) -> Manifest | None:
    """Return another artifact's manifest; a broken or newer one says nothing here, and harms nothing."""
    try:
        return artifacts.find(ref)
    except StoreError:
        return None


def _part_bytes(artifacts: Artifacts, ref: ArtifactRef) -> int:
    return sum(entry.size_bytes for part in artifacts.parts(ref).values() for entry in part.files)


def _folder_bytes(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        # Another run may be at work in the same folder.
        with suppress(FileNotFoundError):
            size += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return size
