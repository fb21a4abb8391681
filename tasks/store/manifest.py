"""Manifests: what an artifact consists of, where it came from, what it cost. Written last; a manifest means done.

`<kind>/<fingerprint>/manifest.json` is canonical JSON (sorted keys, no blanks, ASCII):

    {"account":{"num_failed":0,"num_input":2,"num_kept":2,"num_skipped":0,"reasons":{}},
     "cost":{"bytes_written":8,"gpu_seconds":0.0,"seconds":1.5,"tokens":64},"created":"2026-01-31T02:00:00Z",
     "facts":{},"files":[{"path":"rows/0.parquet","sha256":"...","size_bytes":8}],"fingerprint":"...",
     "format_version":1,"inputs":{"prompts":"..."},"kind":"corpus","provenance":{...},"stage_version":1}

`<kind>/<fingerprint>/parts/<name>.json` is the same for one shard or epoch of unfinished work.
"""

import json
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from tasks.errors import ArtifactCorrupt, StoreError
from tasks.store.artifact import Fingerprint, Kind

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
PARTS_FOLDER = "parts"
MAX_PATH_BYTES = 512  # S3 keys end at 1024 bytes; kind, fingerprint and bucket prefix need room

R = TypeVar("R", bound=BaseModel)
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def relative_path(text: str) -> str:
    """Return text if it is a relative POSIX path that stays in its folder. Raises ValueError otherwise."""
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"path {text!r} is absolute, leaves its folder, or has an empty part")
    if "\\" in text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError(f"path {text!r} holds a backslash or a control character")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES or not text.isprintable():
        raise ValueError(f"path {text[:80]!r}... is longer than {MAX_PATH_BYTES} bytes or not printable")
    return text


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class FileEntry(_Record):
    """One file of an artifact: a relative POSIX path, its size, its sha256."""

    path: Annotated[str, AfterValidator(relative_path)]
    size_bytes: Count
    sha256: Fingerprint


class Account(_Record):
    """How many things came in and what became of each; it must close."""

    num_input: Count
    num_kept: Count
    num_failed: Count = 0
    num_skipped: Count = 0
    reasons: dict[str, int] = {}

    @model_validator(mode="after")
    def _closes(self) -> Self:
        total = self.num_kept + self.num_failed + self.num_skipped
        if self.num_input != total:
            raise ValueError(f"the account does not close: {self.num_input} came in, {total} are accounted for")
        return self


class Cost(_Record):
    """What it took to make the artifact."""

    seconds: Amount
    gpu_seconds: Amount = 0
    tokens: Count = 0
    bytes_written: Count = 0


class Provenance(_Record):
    """Where the artifact came from: command, code, packages, engine, hardware, resolved recipe."""

    argv: tuple[str, ...]
    git_commit: str | None
    git_dirty: bool | None
    packages: dict[str, str]
    engine: dict[str, str]
    hardware: dict[str, str]
    recipe: dict[str, Any]


def _distinct(files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
    if len({entry.path for entry in files}) != len(files):
        raise ValueError("the same path is listed twice")
    return files


Files = Annotated[tuple[FileEntry, ...], AfterValidator(_distinct)]


class Manifest(_Record):
    """A finished artifact."""

    format_version: int = FORMAT_VERSION
    kind: Kind
    fingerprint: Fingerprint
    stage_version: int
    inputs: dict[str, str]
    files: Files
    account: Account | None
    cost: Cost
    provenance: Provenance
    facts: dict[str, Any]
    created: str

    def file(self, path: str) -> FileEntry:
        """Return the entry of a path. Raises StoreError that names the nearest ones."""
        for entry in self.files:
            if entry.path == path:
                return entry
        listed = ", ".join(entry.path for entry in self.files[:8])
        raise StoreError(f"artifact {self.kind}/{self.fingerprint[:12]} lists no file {path!r}; it lists: {listed}")


class PartManifest(_Record):
    """One finished shard or epoch of an artifact that is not finished yet; bound to its fingerprint."""

    format_version: int = FORMAT_VERSION
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")]
    fingerprint: Fingerprint
    files: Files
    facts: dict[str, Any] = {}


def dump(record: BaseModel) -> bytes:
    """Return canonical JSON: sorted keys, no blanks, ASCII, one closing newline. Raises ValueError on NaN."""
    text = json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def load_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in data; where names its object in messages.

    Raises ArtifactCorrupt: not a manifest. Raises StoreError: written by a newer Draftworks.
    """
    return load(Manifest, data, where)


def load_part(data: bytes, where: str) -> PartManifest:
    """Return the part manifest in data; raises as load_manifest does."""
    return load(PartManifest, data, where)


def load(shape: type[R], data: bytes, where: str) -> R:
    """Return data as a record of a shape that has a format_version. Raises as load_manifest does."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise ArtifactCorrupt(f"read {where}: {len(data)} bytes that are not JSON ({error}); write it again") from error
    version = content.get("format_version", FORMAT_VERSION) if isinstance(content, dict) else FORMAT_VERSION
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise StoreError(
            f"read {where}: format version {version}, this Draftworks reads up to {FORMAT_VERSION}; "
            "upgrade Draftworks, or use another prefix"
        )
    try:
        return shape.model_validate_json(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors()[:5])
        raise ArtifactCorrupt(f"read {where}: not a {shape.__name__} ({faults}); write it again") from error
