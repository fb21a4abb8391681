"""Records of prompts from where they lie: a file, a folder, an s3:// prefix, or a data set of the hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import EvidenceError, RecipeError
from tasks.recipe.settings import Settings
from tasks.store.objects import StoreLocation, connect

ENDINGS = (".jsonl", ".parquet")
MAX_SHOWN = 3


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    broken: list[str] = []
    with path.open("r", encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                broken.append(f"line {number}: {error}")
                continue
            if isinstance(record, dict):
                yield record
            else:
                broken.append(f"line {number}: a {type(record).__name__}, not an object")
    if broken:
        more = f" and {len(broken) - MAX_SHOWN} more" if len(broken) > MAX_SHOWN else ""
        raise EvidenceError(
            f"{path} has {len(broken)} broken lines ({'; '.join(broken[:MAX_SHOWN])}{more}); "
            "expected one JSON object per line. Mend or remove these lines and start again."
        )


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise EvidenceError(f"{path} cannot be read as Parquet: {error}") from error


def _file(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix not in ENDINGS:
        raise EvidenceError(f"{path} is neither .jsonl nor .parquet; give prompts in one of these forms")
    return _jsonl(path) if path.suffix == ".jsonl" else _parquet(path)


def _newest(files: list[tuple[float, Path]], newest_files: int | None) -> list[Path]:
    """Return the files in name order, only the newest ones when a number is given."""
    chosen = sorted(files)[-newest_files:] if newest_files else files
    return sorted(path for _, path in chosen)


def _from_store(source: str, settings: Settings, newest_files: int | None, scratch: Path) -> list[Path]:
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    store = connect(StoreLocation(settings.s3_endpoint, bucket, "", settings.s3_region))
    # Names carry the order of object prefixes (daily folders), since listings promise no usable time.
    keys = sorted((key, size) for key, size in store.list(prefix) if key.endswith(ENDINGS))
    folder = scratch / "prompts"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (key, _) in enumerate(keys[-newest_files:] if newest_files else keys):
        path = folder / f"{number:05d}{Path(key).suffix}"
        path.write_bytes(store.get_bytes(key))
        paths.append(path)
    return paths


def _from_hub(source: str) -> Iterator[dict[str, Any]]:
    from datasets import load_dataset

    name, _, split = source.removeprefix("hf:").partition("#")
    yield from load_dataset(name, split=split or "train")


def read_records(source: str, settings: Settings, *, newest_files: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a source in a fixed order.

    newest_files: of a folder or prefix, read only this many newest files.
    Raises RecipeError: nothing there. EvidenceError: a file that cannot be read, with its lines.
    """
    if source.startswith("hf:"):
        yield from _from_hub(source)
        return
    if source.startswith("s3://"):
        paths = _from_store(source, settings, newest_files, settings.scratch_dir)
    else:
        place = Path(source).expanduser()
        files = [path for path in place.rglob("*") if path.suffix in ENDINGS] if place.is_dir() else [place]
        if not place.exists():
            raise RecipeError(f"prompts: there is no {place}. Give a file, a folder, an s3:// prefix or hf:owner/name.")
        paths = _newest([(path.stat().st_mtime, path) for path in files], newest_files)
    if not paths:
        raise RecipeError(f"prompts: {source} holds no .jsonl or .parquet file")
    for path in paths:
        yield from _file(path)
