"""Fingerprints: the sha256 of what was asked and of what it was made from.

fingerprint("draft", 1, {"training": ...}, {"corpus": "9f...", "vocabulary": "03..."}, target="ab...", engine={})
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII, no NaN. Raises ValueError on NaN."""

    def plain(item: Any) -> Any:
        if isinstance(item, BaseModel):
            return item.model_dump(mode="json")
        raise TypeError(f"{type(item).__name__} has no canonical JSON form")

    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=plain).encode("ascii")


def digest(value: Any) -> str:
    """Return the sha256 (64 hex digits) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def fingerprint(
    kind: str,
    stage_version: int,
    asked: Mapping[str, Any],
    inputs: Mapping[str, str],
    *,
    target: str,
    engine: Mapping[str, str] | None = None,
) -> str:
    """Return an artifact's fingerprint.

    asked: the part of the recipe that the stage reads. inputs: name -> fingerprint of what it reads.
    target: the target's identity. engine: the engine build, where the result depends on it.
    """
    return digest(
        {
            "kind": kind,
            "stage_version": stage_version,
            "asked": dict(asked),
            "inputs": dict(inputs),
            "target": target,
            "engine": dict(engine or {}),
        }
    )
