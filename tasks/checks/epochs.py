"""The epochs of a run folder: which are complete, which is best, where the links point.

speculators writes 0/, 1/, ... (zero-based epochs; not atomically), in each training_state.json last, val_metrics.json
for every new best, and the links checkpoint_best -> 1 and epoch1_end -> 1. Where a copy turned links into small
files that hold the name, these are read the same way.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.checks.finding import plain
from tasks.checks.jsonfile import read_json
from tasks.checks.source import ByteSource, LocalFolder, Subfolder
from tasks.checks.weights import read_weights

EPOCH_NAME = re.compile(r"\d{1,6}|interrupted")
LINK_NAME = re.compile(r"checkpoint_(best|last)|epoch\d+_\w+")
BEST_LINK = "checkpoint_best"
# Longest content of a link that became a file.
LINK_LIMIT_BYTES = 64
LOSS_KEY = "loss_epoch"


@dataclass(frozen=True, slots=True)
class Epoch:
    """One saved epoch; missing says what a complete one would have."""

    name: str
    missing: tuple[str, ...]
    val_loss: float | None

    @property
    def is_complete(self) -> bool:
        """Return whether the save ran to its end."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder; links that point at no epoch are dangling."""

    epochs: tuple[Epoch, ...]
    links: Mapping[str, str]

    @property
    def dangling(self) -> tuple[str, ...]:
        """Return the links whose epoch is not there."""
        names = {epoch.name for epoch in self.epochs}
        return tuple(link for link, name in sorted(self.links.items()) if name not in names)

    @property
    def best(self) -> str | None:
        """Return the epoch that checkpoint_best names, else the complete one with the lowest finite loss."""
        linked = self.links.get(BEST_LINK)
        if linked is not None and BEST_LINK not in self.dangling:
            return linked
        chosen = choose_best(self.epochs)
        return chosen.name if chosen else None


def is_run(source: ByteSource) -> bool:
    """Return whether the source is a folder of epochs rather than one draft."""
    names = source.names()
    return "config.json" not in names and any(
        EPOCH_NAME.fullmatch(name.split("/", 1)[0]) for name in names if "/" in name
    )


def read_run(source: ByteSource) -> Run:
    """Return the epochs and links of a run folder; only headers and small files are read."""
    folders = {name.split("/", 1)[0] for name in source.names() if "/" in name}
    found = sorted((name for name in folders if EPOCH_NAME.fullmatch(name)), key=_order)
    return Run(tuple(_epoch(Subfolder(source, name), name) for name in found), _links(source))


def choose_newest_complete(epochs: tuple[Epoch, ...]) -> Epoch | None:
    """Return the complete epoch with the highest number, or None."""
    complete = [epoch for epoch in epochs if epoch.is_complete]
    return complete[-1] if complete else None


def choose_best(epochs: tuple[Epoch, ...]) -> Epoch | None:
    """Return the complete epoch with the lowest finite validation loss, or None; NaN never wins."""
    scored = [epoch for epoch in epochs if epoch.is_complete and epoch.val_loss is not None]
    return min(scored, key=lambda epoch: epoch.val_loss or 0.0) if scored else None


def choose(run: Run) -> Epoch | None:
    """Return the epoch to check: the best if it is complete, else the newest complete, else the newest."""
    by_name = {epoch.name: epoch for epoch in run.epochs}
    best = by_name.get(run.best or "")
    if best is not None and best.is_complete:
        return best
    return choose_newest_complete(run.epochs) or best or (run.epochs[-1] if run.epochs else None)


def _order(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdigit() else (-1, name)


def _epoch(source: ByteSource, name: str) -> Epoch:
    missing: list[str] = []
    config = read_json(source, "config.json")
    if config.value is None:
        missing.append(config.fault)
    weights = read_weights(source)
    missing += [f"{plain(fault.file)}: {fault.message}" for fault in weights.faults]
    missing += weights.index_faults
    if not weights.headers and not weights.faults:
        missing.append("no *.safetensors weights")
    # With --save-best speculators writes no training state; the metrics are then the last file.
    marks = [read_json(source, "training_state.json"), read_json(source, "val_metrics.json")]
    if all(mark.value is None for mark in marks):
        missing.append("training_state.json, which is written last, is missing")
    if name == "interrupted":
        missing.append("the run was interrupted while this epoch ran")
    return Epoch(name, tuple(missing), finite_loss(marks[1].value))


def finite_loss(metrics: Mapping[str, object] | None) -> float | None:
    """Return the validation loss, or None if there is none or it is not finite."""
    loss = (metrics or {}).get(LOSS_KEY)
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        return None
    try:
        return float(loss) if math.isfinite(loss) else None
    except OverflowError:
        return None


def _links(source: ByteSource) -> dict[str, str]:
    links = {name: plain(target.rstrip("/")) for name, target in _symlinks(source).items() if LINK_NAME.fullmatch(name)}
    for name in source.names():
        if LINK_NAME.fullmatch(name) and name not in links and source.size(name) <= LINK_LIMIT_BYTES:
            text = source.read(name, 0, LINK_LIMIT_BYTES).decode("utf-8", "replace").strip()
            links[name] = plain(text)
    return links


def _symlinks(source: ByteSource) -> dict[str, str]:
    return source.links() if isinstance(source, LocalFolder) else {}
