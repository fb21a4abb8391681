"""Refusals: an estimate that passes the recipe's budget, or the free disk, is refused before any work is done."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import RecipeError
from tasks.pages.estimate import Estimate, StageEstimate
from tasks.pages.parts import human_bytes, human_seconds
from tasks.recipe.sections import Budget

# For what is not estimated: caches of the compilers, Prefect's database, the system itself.
SPARE_BYTES = 2**30


@dataclass(frozen=True)
class Disk:
    """The disk of the scratch folder."""

    folder: Path
    free_bytes: int
    holds_store: bool = False
    """Whether the store lies on it as well, as the embedded S3 server's does."""
    begun_bytes: int = 0
    """Bytes of unfinished artifacts that lie in the store already."""


def refuse_beyond(estimate: Estimate, budget: Budget, disk: Disk) -> None:
    """Raise RecipeError when a production would pass its budget or the free disk: the figures, and what to change."""
    _refuse_store(estimate, budget)
    _refuse_hours(estimate, budget)
    _refuse_disk(estimate, disk)


def _shares(estimate: Estimate, text: Callable[[StageEstimate], str], size: Callable[[StageEstimate], float]) -> str:
    """Return the share of each stage in words, the largest first."""
    stages = sorted((stage for stage in estimate.to_do if size(stage)), key=size, reverse=True)
    return ", ".join(f"{stage.kind} {text(stage)}" for stage in stages)


def _refuse_store(estimate: Estimate, budget: Budget) -> None:
    if estimate.store_bytes <= budget.store_gib * 2**30:
        return
    shares = _shares(estimate, lambda stage: human_bytes(stage.store_bytes), lambda stage: stage.store_bytes)
    raise RecipeError(
        f"the production would write up to {human_bytes(estimate.store_bytes)} to the store, more than "
        f"budget.store_gib = {budget.store_gib:g} ({shares}). Use fewer prompts (prompts.limit), shorter answers "
        "(generation.max_tokens) or fewer epochs (training.epochs), or raise budget.store_gib."
    )


def _refuse_hours(estimate: Estimate, budget: Budget) -> None:
    if budget.hours is None or estimate.seconds <= budget.hours * 3600:
        return
    shares = _shares(
        estimate, lambda stage: f"{human_seconds(stage.seconds)} by {stage.basis}", lambda stage: stage.seconds
    )
    raise RecipeError(
        f"the production would take about {human_seconds(estimate.seconds)}, more than budget.hours = "
        f"{budget.hours:g} ({shares}). Use fewer prompts (prompts.limit), shorter answers (generation.max_tokens) or "
        "fewer epochs (training.epochs), or raise budget.hours."
    )


def _refuse_disk(estimate: Estimate, disk: Disk) -> None:
    if not estimate.to_do:
        return
    store = max(0, estimate.store_bytes - disk.begun_bytes) if disk.holds_store else 0
    needed = estimate.scratch_bytes + store + SPARE_BYTES
    if disk.free_bytes >= needed:
        return
    shares = _shares(estimate, lambda stage: human_bytes(stage.scratch_bytes), lambda stage: stage.scratch_bytes)
    also = f", {human_bytes(store)} for the store, which lies on the same disk" if store else ""
    raise RecipeError(
        f"{disk.folder} has {human_bytes(disk.free_bytes)} free; the production needs up to {human_bytes(needed)} "
        f"there ({shares}{also}, {human_bytes(SPARE_BYTES)} to spare). Free some space, use fewer prompts "
        "(prompts.limit) or shorter answers (generation.max_tokens), or set DRAFTWORKS_SCRATCH to another disk."
    )
