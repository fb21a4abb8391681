"""What unfinished work left on this machine: old scratch folders, and half-sent objects of the embedded S3 server.

SCRATCH/<kind>/<fingerprint, 16 digits>/     working files of an artifact
HOME/s3/.localbucket-uploads/<id>/           parts of an upload; upload.json says of which bucket and key
HOME/s3/<bucket>/<kind>/.../.localbucket-*   a write that a killed server left
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tasks.store.artifact import ArtifactRef
from tasks.store.collect import IN_USE, Outcome
from tasks.store.inventory import KINDS, ref_of
from tasks.store.retention import Removal, hours

SCRATCH_DIGITS = 16
UPLOADS_FOLDER = ".localbucket-uploads"
UPLOAD_RECORD = "upload.json"
TEMPORARY = ".localbucket-*"
_SCRATCH_NAME = re.compile(rf"[0-9a-f]{{{SCRATCH_DIGITS}}}")
InUse = Callable[[], Iterable[ArtifactRef]]


def scratch_removals(scratch: Path, in_use: Iterable[ArtifactRef], older_than_s: float) -> Iterator[Removal]:
    """Yield the working folders of artifacts that no run uses and that nobody touched for that long."""
    used = {_scratch_name(ref) for ref in in_use}
    for kind in KINDS:
        for folder in sorted((scratch / kind).glob("*")):
            name = f"{kind}/{folder.name}"
            if folder.is_symlink() or not _SCRATCH_NAME.fullmatch(folder.name) or name in used:
                continue
            num_bytes, age_s = _size_and_age(folder)
            if age_s >= older_than_s:
                why = f"working files on this machine, untouched for {hours(age_s)}"
                yield Removal("scratch", str(folder), why, num_bytes, path=folder)


def embedded_removals(root: Path, bucket: str, prefix: str, older_than_s: float) -> Iterator[Removal]:
    """Yield what interrupted writes left in the data folder of the embedded S3 server."""
    base = f"{prefix}/" if prefix else ""
    for folder in sorted((root / UPLOADS_FOLDER).glob("*")):
        key = _upload_key(folder, bucket)
        if key is not None and key.startswith(base) and ref_of(key.removeprefix(base)):
            yield from _old(folder, f"parts of {key}", older_than_s)
    for kind in KINDS:
        for path in sorted((root / bucket / prefix / kind).rglob(TEMPORARY)):
            yield from _old(path, str(path), older_than_s)


def _old(path: Path, what: str, older_than_s: float) -> Iterator[Removal]:
    num_bytes, age_s = _size_and_age(path)
    if age_s >= older_than_s:
        yield Removal("upload", what, f"begun and never completed, untouched for {hours(age_s)}", num_bytes, path=path)


def _upload_key(folder: Path, bucket: str) -> str | None:
    try:
        record = json.loads((folder / UPLOAD_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    key = record.get("key") if isinstance(record, dict) and record.get("bucket") == bucket else None
    return key if isinstance(key, str) else None


def _scratch_name(ref: ArtifactRef) -> str:
    return f"{ref.kind}/{ref.fingerprint[:SCRATCH_DIGITS]}"


def _size_and_age(top: Path) -> tuple[int, float]:
    """Return the bytes below a path, and the seconds since anything there changed; links are not followed."""
    num_bytes, newest = 0, top.lstat().st_mtime
    for folder, names, files in os.walk(top):
        for name in (*names, *files):
            try:
                status = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            newest = max(newest, status.st_mtime)
            num_bytes += status.st_size if name in files else 0
    if top.is_file():
        num_bytes = top.lstat().st_size
    return num_bytes, time.time() - newest


def remove_leftovers(removals: Iterable[Removal], in_use: InUse, older_than_s: float) -> Iterator[Outcome]:
    """Remove paths; one that somebody touched or needs meanwhile stays."""
    for removal in removals:
        path = removal.path
        if path is None or not path.exists():
            continue
        is_used = f"{path.parent.name}/{path.name}" in {_scratch_name(ref) for ref in in_use()}
        if is_used or _size_and_age(path)[1] < older_than_s:
            yield Outcome(removal, IN_USE)
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        yield Outcome(removal)
