"""Training metrics as JSON lines: written by the training process, read by the stage.

    {"time": 1700000000.0, "split": "train", "epoch": 0, "step": 12, "lr": 0.0006, "loss": 9.1, "full_acc_0": 0.2,
     "tokens_per_s": 780.0}
    {"time": 1700000060.0, "split": "val", "epoch": 0, "step": 40, "loss": 8.0, "full_acc_0": 0.3}

Values that are not finite numbers are null.
"""

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Of speculators' timing figures, the two that a person looks at.
PROFILE_KEYS = ("tokens_per_s", "step_ms")


def _finite(value: Any) -> Any:
    return value if not isinstance(value, float) or math.isfinite(value) else None


def to_metric_line(message: Mapping[str, Any], step: int | None) -> dict[str, Any] | None:
    """Return the flat record of one message on speculators' metric logger, or None for other messages."""
    split = "train" if "train" in message else "val" if "val" in message else None
    if split is None:
        return None
    line: dict[str, Any] = {"time": time.time(), "split": split, "epoch": message.get("epoch"), "step": step}
    rate = message.get("lr")
    if rate is not None:
        line["lr"] = max(rate.values()) if isinstance(rate, Mapping) else rate
    line.update({str(key).removesuffix("_epoch"): value for key, value in message[split].items()})
    profile = message.get("profile") or {}
    line.update({key: profile[key] for key in PROFILE_KEYS if key in profile})
    return {key: _finite(value) for key, value in line.items()}


class MetricLines(logging.Handler):
    """Appends what speculators logs as metrics to a file, one JSON object a line, flushed at once."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending; a resumed training continues it."""
        super().__init__(logging.INFO)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, if it is a metric."""
        line = to_metric_line(record.msg, getattr(record, "step", None)) if isinstance(record.msg, Mapping) else None
        if line is not None:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def read_metric_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records in step order; of a step that was done twice (after a resume), the later one.

    A file that is not there gives an empty list; an unfinished last line is left out.
    """
    if not path.is_file():
        return []
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").split("\n")[:-1]:
        line = json.loads(text)
        latest[(line["split"], line["step"])] = line
    return sorted(latest.values(), key=lambda line: (line["step"], line["time"]))
