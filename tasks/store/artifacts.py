"""Artifacts: files below a fingerprint, done when a manifest lists them and the store holds them.

<kind>/<fingerprint>/<file>             the files; nothing reads one that no manifest lists
<kind>/<fingerprint>/parts/<name>.json  part manifests of unfinished work, bound to the fingerprint
<kind>/<fingerprint>/manifest.json      written last
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from tasks.errors import ArtifactCorrupt, ArtifactMissing, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.download import file_sha256
from tasks.store.manifest import (
    MANIFEST_NAME,
    PARTS_FOLDER,
    FileEntry,
    Manifest,
    PartManifest,
    dump,
    load_manifest,
    load_part,
)
from tasks.store.objects import SMALL_BYTES, ObjectStore

FILES_AT_ONCE = 4


class Artifacts:
    """The artifacts of one store."""

    def __init__(self, store: ObjectStore) -> None:
        """Use a store; nothing is sent yet."""
        self.store = store

    def uri(self, ref: ArtifactRef) -> str:
        """Return s3://bucket/prefix/kind/fingerprint/."""
        return self.store.uri(ref.prefix)

    def find(self, ref: ArtifactRef) -> Manifest | None:
        """Return the manifest of a finished artifact; None when it is not done, see explain.

        Raises ArtifactCorrupt: the manifest is another artifact's, or unsafe. Raises StoreError: a newer format.
        """
        return self._look(ref)[0]

    def explain(self, ref: ArtifactRef) -> str:
        """Return in one sentence why an artifact is done or not."""
        return self._look(ref)[1]

    def _look(self, ref: ArtifactRef) -> tuple[Manifest | None, str]:
        stored = self.store.get_versioned(ref.prefix + MANIFEST_NAME)
        where = self.store.uri(ref.prefix + MANIFEST_NAME)
        if stored is None:
            return None, f"{where} is not there"
        if not stored[0].endswith(b"}\n"):
            return None, f"{where} is cut off after {len(stored[0])} bytes, as an interrupted write leaves it"
        manifest = load_manifest(stored[0], where)
        if (manifest.kind, manifest.fingerprint) != (ref.kind, ref.fingerprint):
            raise ArtifactCorrupt(
                f"read {where}: it is the manifest of {manifest.kind}/{manifest.fingerprint}, which was copied to a "
                "wrong place; delete this object"
            )
        wrong = self._first_wrong(manifest.files, self._sizes(ref), ref)
        if wrong is not None:
            return None, wrong
        return manifest, f"{where} is there, and its {len(manifest.files)} files have the sizes it lists"

    def _sizes(self, ref: ArtifactRef) -> dict[str, int]:
        return {key.removeprefix(ref.prefix): size for key, size in self.store.list(ref.prefix)}

    def _first_wrong(self, files: Sequence[FileEntry], sizes: dict[str, int], ref: ArtifactRef) -> str | None:
        for entry in files:
            size = sizes.get(entry.path)
            if size != entry.size_bytes:
                seen = "is not there" if size is None else f"has {size} bytes"
                return f"{self.store.uri(ref.prefix + entry.path)} {seen}, expected {entry.size_bytes} bytes"
        return None

    def put(self, ref: ArtifactRef, name: str, path: Path) -> FileEntry:
        """Store a file under a name; return its entry for the manifest. Links are followed, never stored."""
        key = self._file_key(ref, name)
        size, sha256 = self.store.put_file(path, key)
        return FileEntry(path=name, size_bytes=size, sha256=sha256)

    def put_bytes(self, ref: ArtifactRef, name: str, data: bytes) -> FileEntry:
        """Store bytes under a name; return their entry for the manifest."""
        key = self._file_key(ref, name)
        self.store.put_bytes(key, data)
        return FileEntry(path=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _file_key(self, ref: ArtifactRef, name: str) -> str:
        if name == MANIFEST_NAME or name.split("/")[0] == PARTS_FOLDER:
            raise StoreError(f"store {name!r} in {self.uri(ref)}: that name belongs to manifests; choose another")
        return ref.prefix + name

    def finish(self, manifest: Manifest) -> ArtifactRef:
        """Write the manifest, last. Raises ArtifactMissing: a file that it lists is absent or has another size."""
        ref = ArtifactRef(kind=manifest.kind, fingerprint=manifest.fingerprint)
        wrong = self._first_wrong(manifest.files, self._sizes(ref), ref)
        if wrong is not None:
            raise ArtifactMissing(f"finish {self.uri(ref)}: {wrong}; no manifest was written, store the file again")
        self.store.put_bytes(ref.prefix + MANIFEST_NAME, dump(manifest))
        return ref

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """Return the manifest of an artifact that must be done. Raises ArtifactMissing with the reason when not."""
        manifest, reason = self._look(ref)
        if manifest is None:
            raise ArtifactMissing(f"read {self.uri(ref)}: {reason}; run the stage that makes {ref.kind}")
        return manifest

    def fetch(self, ref: ArtifactRef, folder: Path, names: Sequence[str] | None = None) -> Path:
        """Bring files into a folder, all or the named ones, each verified; those already there and right stay.

        Raises ArtifactMissing: not done. Raises ArtifactCorrupt: size or sha256 differ. Returns the folder.
        """
        manifest = self.manifest(ref)
        entries = manifest.files if names is None else tuple(manifest.file(name) for name in names)
        return self.fetch_files(ref, entries, folder)

    def fetch_files(self, ref: ArtifactRef, entries: Sequence[FileEntry], folder: Path) -> Path:
        """Bring listed files into a folder, also of an artifact that has only part manifests yet; see fetch."""
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="fetch") as pool:
            try:
                for future in [pool.submit(self._fetch_one, ref, entry, folder) for entry in entries]:
                    future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return folder

    def _fetch_one(self, ref: ArtifactRef, entry: FileEntry, folder: Path) -> None:
        path = folder / entry.path
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise StoreError(f"fetch {ref} to {path}: a link there leads out of {folder}; use an empty folder")
        here = path.is_file() and not path.is_symlink() and path.stat().st_size == entry.size_bytes
        if here and file_sha256(path) == entry.sha256:
            return
        self.store.get_file(ref.prefix + entry.path, path, size_bytes=entry.size_bytes, sha256=entry.sha256)

    def read_bytes(self, ref: ArtifactRef, name: str) -> bytes:
        """Return one small file of a finished artifact, verified."""
        return self.read_entry(ref, self.manifest(ref).file(name))

    def read_entry(self, ref: ArtifactRef, entry: FileEntry) -> bytes:
        """Return one small listed file, verified. Raises ArtifactCorrupt: size or sha256 differ."""
        data = self.store.get_bytes(ref.prefix + entry.path, max(SMALL_BYTES, entry.size_bytes))
        digest = hashlib.sha256(data).hexdigest()
        if (len(data), digest) != (entry.size_bytes, entry.sha256):
            raise ArtifactCorrupt(
                f"read {self.store.uri(ref.prefix + entry.path)}: {len(data)} bytes with sha256 {digest}, its manifest "
                f"says {entry.size_bytes} and {entry.sha256}; delete the artifact and run its stage again"
            )
        return data

    def put_part(self, ref: ArtifactRef, part: PartManifest) -> None:
        """Record a shard or epoch whose files are stored. Raises StoreError: it is bound to another fingerprint."""
        if part.fingerprint != ref.fingerprint:
            raise StoreError(f"record part {part.name} of {ref}: it is bound to {part.fingerprint[:12]}; make it anew")
        self.store.put_bytes(self._part_key(ref, part.name), dump(part))

    def _part_key(self, ref: ArtifactRef, name: str) -> str:
        return f"{ref.prefix}{PARTS_FOLDER}/{name}.json"

    def parts(self, ref: ArtifactRef) -> dict[str, PartManifest]:
        """Return by name the parts that can be used: bound to this fingerprint, their files there at the right size."""
        sizes = self._sizes(ref)
        names = [name for name in sizes if name.startswith(f"{PARTS_FOLDER}/") and name.endswith(".json")]
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="parts") as pool:
            read = pool.map(lambda name: self._read_part(ref, name), names)
            found = [part for part in read if part is not None]
        return {part.name: part for part in found if self._first_wrong(part.files, sizes, ref) is None}

    def _read_part(self, ref: ArtifactRef, name: str) -> PartManifest | None:
        """Return a part, None when it was cut off, deleted meanwhile, or is bound to something else."""
        stored = self.store.get_versioned(ref.prefix + name)
        if stored is None or not stored[0].endswith(b"}\n"):
            return None
        part = load_part(stored[0], self.store.uri(ref.prefix + name))
        own = part.fingerprint == ref.fingerprint and self._part_key(ref, part.name) == ref.prefix + name
        return part if own else None

    def delete_parts(self, ref: ArtifactRef, names: Sequence[str]) -> None:
        """Forget parts; their files stay, since the finished artifact lists them."""
        self.store.delete([self._part_key(ref, name) for name in names])

    def delete(self, ref: ArtifactRef) -> int:
        """Delete an artifact, its manifest first so that it is never half done; return the number of objects."""
        keys = [key for key, _ in self.store.list(ref.prefix)]
        self.store.delete([key for key in keys if key == ref.prefix + MANIFEST_NAME])
        self.store.delete([key for key in keys if key != ref.prefix + MANIFEST_NAME])
        return len(keys)

    def refs(self, kind: str) -> Iterator[ArtifactRef]:
        """Yield the artifacts of a kind that have a manifest."""
        for key, _ in self.store.list(f"{kind}/"):
            fingerprint, _, name = key.removeprefix(f"{kind}/").partition("/")
            if name == MANIFEST_NAME:
                try:
                    yield ArtifactRef(kind=kind, fingerprint=fingerprint)
                except ValidationError:
                    continue  # a folder that is none of ours
