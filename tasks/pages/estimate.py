"""What a production is expected to take, as small frozen records, and how people read it. Pure text.

corpus    172,800 tokens, 844 KiB in the store, 844 KiB on scratch, 7 min 05 s (3 earlier runs)
states    reused
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.pages.parts import human_bytes, human_number, human_seconds, markdown_table, page

REUSED = "reused"
NOTHING = "next to nothing"
_HEADER = ("artifact", "tokens", "in the store", "on scratch", "time", "the time is from")


@dataclass(frozen=True)
class StageEstimate:
    """What one artifact is expected to take; bytes and tokens are bounds from above, as far as they can be known."""

    kind: str
    tokens: int = 0
    store_bytes: int = 0
    """Most that lies in the store at a time; of a draft this counts every epoch with its training state."""
    scratch_bytes: int = 0
    """What comes on top of the working files that are there already."""
    seconds: float = 0.0
    basis: str = REUSED
    """What the seconds are from: rule of thumb, so many earlier runs, or reused."""

    @property
    def is_reused(self) -> bool:
        """Return whether the artifact is there, so that it takes nothing."""
        return self.basis == REUSED


@dataclass(frozen=True)
class Estimate:
    """What a production is expected to take."""

    stages: tuple[StageEstimate, ...]

    @property
    def store_bytes(self) -> int:
        """Return the bytes that come into the store."""
        return sum(stage.store_bytes for stage in self.stages)

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes that come onto the scratch disk."""
        return sum(stage.scratch_bytes for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Return the seconds of all stages, which run one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def to_do(self) -> tuple[StageEstimate, ...]:
        """Return the stages that have work to do."""
        return tuple(stage for stage in self.stages if not stage.is_reused)

    def stage(self, kind: str) -> StageEstimate:
        """Return the estimate of one artifact; a kind that is not among them takes next to nothing."""
        found = (stage for stage in self.stages if stage.kind == kind)
        return next(found, StageEstimate(kind, basis=NOTHING))


def estimate_line(stage: StageEstimate) -> str:
    """Return one artifact's estimate in words."""
    if stage.basis in (REUSED, NOTHING):
        return stage.basis
    store, scratch = human_bytes(stage.store_bytes), human_bytes(stage.scratch_bytes)
    tokens = f"{human_number(stage.tokens)} tokens, " if stage.tokens else ""
    return f"{tokens}{store} in the store, {scratch} on scratch, {human_seconds(stage.seconds)} ({stage.basis})"


def estimate_page(estimate: Estimate) -> str:
    """Return the estimate as a page of the UI; its first paragraph has the sums."""
    store, scratch = human_bytes(estimate.store_bytes), human_bytes(estimate.scratch_bytes)
    lead = (
        f"Up to **{store}** in the store and {scratch} on scratch, about **{human_seconds(estimate.seconds)}**."
        if estimate.to_do
        else "Everything is there already: nothing will be computed."
    )
    note = "A rule of thumb may be wrong by a factor of two or three; earlier runs on this hardware replace it."
    return page(["# Estimate", lead, markdown_table(_HEADER, _rows(estimate)), note])


def _rows(estimate: Estimate) -> Iterator[tuple[str, ...]]:
    for stage in estimate.stages:
        if stage.is_reused:
            yield (stage.kind, "", "", "", "", REUSED)
            continue
        sizes = (human_number(stage.tokens), human_bytes(stage.store_bytes), human_bytes(stage.scratch_bytes))
        yield (stage.kind, *sizes, human_seconds(stage.seconds), stage.basis)
    total = (human_bytes(estimate.store_bytes), human_bytes(estimate.scratch_bytes), human_seconds(estimate.seconds))
    yield ("**all**", "", *total, "")
