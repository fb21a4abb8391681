"""Reading a small JSON file of a draft: what it holds, or why it holds nothing usable."""

import json
from dataclasses import dataclass
from typing import Any

from tasks.checks.finding import plain
from tasks.checks.source import ByteSource

# A config is a few kilobytes; a sharded target's index with 100 000 names is about 10 MB.
CONFIG_LIMIT_BYTES = 256 * 1024
INDEX_LIMIT_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A JSON object read from a file; value is None, and fault says why, when there is none."""

    name: str
    value: dict[str, Any] | None = None
    fault: str = ""
    present: bool = True


def read_json(source: ByteSource, name: str, limit: int = CONFIG_LIMIT_BYTES) -> JsonFile:
    """Return the JSON object in a file. Never raises for what the file holds."""
    if name not in source.names():
        return JsonFile(name, fault=f"{name} is missing", present=False)
    size = source.size(name)
    if size == 0:
        return JsonFile(name, fault=f"{name} is empty")
    if size > limit:
        return JsonFile(name, fault=f"{name} has {size} bytes, far more than such a file needs (limit {limit})")
    raw = source.read(name, 0, size)
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return JsonFile(name, fault=f"{name} is not JSON: {plain(error)}; it starts with {plain(raw[:40])}")
    if not isinstance(value, dict):
        return JsonFile(name, fault=f"{name} holds a {type(value).__name__}, not a JSON object")
    return JsonFile(name, value)
