"""Reading the run folder that speculators' trainer writes: which epochs are whole, and which one is best.

RUN/0/  config.json model.safetensors optimizer_state_dict.pt scheduler_state_dict.pt
        training_state.json  {"epoch": 0, "local_step": 0, "global_step": 120}, written last
        val_metrics.json     {"loss_epoch": 8.1, "full_acc_0_epoch": 0.4, ...}, after the validation
RUN/1/ ...  and the links checkpoint_best, epoch0_end, ... which are not read
"""

import json
import math
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import EvidenceError

STATE_NAME = "training_state.json"
VALIDATION_NAME = "val_metrics.json"
WEIGHTS_NAME = "model.safetensors"
NEEDED_FILES = ("config.json", WEIGHTS_NAME, "optimizer_state_dict.pt", STATE_NAME)
# A safetensors header longer than this is refused by the library itself.
MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True)
class Epoch:
    """One epoch folder: whole, or why not."""

    number: int
    folder: Path
    problem: str | None
    metrics: dict[str, float]

    @property
    def predicted_acceptance_length(self) -> float | None:
        """Return 1 + the validation shares of drafts right up to each step; None when unmeasured or not finite."""
        return predicted_acceptance_length(self.metrics)


def predicted_acceptance_length(metrics: dict[str, float]) -> float | None:
    """Return 1 + sum of full_acc_i, which counts the target's own token; None when a value is absent or not finite."""
    total, step = 1.0, 0
    while (value := metrics.get(f"full_acc_{step}_epoch", metrics.get(f"full_acc_{step}"))) is not None:
        total, step = total + value, step + 1
    return total if step and math.isfinite(total) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _weights_problem(path: Path) -> str | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES + 1
        if header_bytes > MAX_HEADER_BYTES:
            return f"{path.name} is not a safetensors file"
        try:
            header = json.loads(file.read(header_bytes))
            end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        except (ValueError, KeyError, TypeError):
            return f"{path.name} has an unreadable header"
    expected = 8 + header_bytes + end
    return None if size == expected else f"{path.name} has {size} bytes; its header says {expected}"


def _problem(folder: Path) -> str | None:
    missing = [name for name in NEEDED_FILES if not (folder / name).is_file()]
    if missing:
        return f"{', '.join(missing)} missing"
    state = _read_json(folder / STATE_NAME)
    if state is None:
        return f"{STATE_NAME} is not JSON"
    return _weights_problem(folder / WEIGHTS_NAME)


def list_epochs(run: Path) -> tuple[Epoch, ...]:
    """Return the epoch folders of a run in order, whole ones and others; empty when there are none."""
    if not run.is_dir():
        return ()
    folders = [path for path in run.iterdir() if path.name.isdecimal() and path.is_dir() and not path.is_symlink()]
    epochs = [Epoch(int(path.name), path, _problem(path), _read_json(path / VALIDATION_NAME) or {}) for path in folders]
    return tuple(sorted(epochs, key=lambda epoch: epoch.number))


def choose_epoch(run: Path) -> Epoch:
    """Return the whole epoch with the highest predicted acceptance length; of equals, the later.

    Recomputed from the stored metrics of every epoch, so that a resumed training cannot forget an earlier best.
    Raises EvidenceError when no whole epoch has finite validation metrics.
    """
    epochs = list_epochs(run)
    whole = [epoch for epoch in epochs if epoch.problem is None]
    measured = [(length, epoch.number, epoch) for epoch in whole if (length := epoch.predicted_acceptance_length)]
    if not measured:
        broken = "; ".join(f"epoch {epoch.number}: {epoch.problem}" for epoch in epochs if epoch.problem)
        raise EvidenceError(
            f"{run} has no epoch to choose: {len(whole)} of {len(epochs)} epochs are complete, none with finite "
            f"validation metrics. {broken}".rstrip()
        )
    return max(measured, key=lambda entry: entry[:2])[2]


def remove_incomplete(run: Path) -> tuple[Epoch, ...]:
    """Delete epochs that a kill left half-written, and return them; the trainer would resume from their names."""
    broken = tuple(epoch for epoch in list_epochs(run) if epoch.problem is not None)
    for epoch in broken:
        shutil.rmtree(epoch.folder)
    return broken
