"""The draft vocabulary: counting supervised tokens, choosing ids, and the map between draft and target ids.

Shapes: V target vocabulary, W draft vocabulary.
Files: t2d.npy [V] bool, true where a target id is in the draft vocabulary; d2t.npy [W] int64, the offset from a draft
id to its target id (target id = draft id + d2t[draft id]). A draft with the target's whole vocabulary has no map.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.errors import EvidenceError, RecipeError

T2D_NAME = "t2d.npy"
D2T_NAME = "d2t.npy"


@dataclass(frozen=True)
class VocabularyMap:
    """Which target ids a draft can propose, and how they are numbered in it."""

    t2d: NDArray[np.bool_]
    """[V] true where the target id is in the draft vocabulary."""
    d2t: NDArray[np.int64]
    """[W] target id minus draft id."""
    coverage: float
    """Share of the counted tokens that the draft can propose, 0 to 1."""
    num_without_evidence: int
    """Slots filled with tokens that the corpus never uses."""


def count_supervised(input_ids: pa.ChunkedArray, loss_mask: pa.ChunkedArray, vocab_size: int) -> NDArray[np.int64]:
    """Return how often each token is supervised, [V] int64, straight from the Arrow buffers.

    input_ids, loss_mask: list columns of equal length; a token counts where its mask is not 0.
    Raises EvidenceError: an id outside the vocabulary (the id and its row), lists of unequal length, an absent row.
    """
    counts: NDArray[np.int64] = np.zeros(vocab_size, np.int64)
    first_row = 0
    table = pa.table({"input_ids": input_ids, "loss_mask": loss_mask})
    for batch in table.to_batches():
        ids_lists, mask_lists = batch.column(0), batch.column(1)
        offsets = _offsets(ids_lists, first_row)
        if not np.array_equal(offsets, _offsets(mask_lists, first_row)):
            raise EvidenceError(f"rows from {first_row} on: input_ids and loss_mask differ in length")
        ids = np.asarray(ids_lists.flatten())
        _require_in_range(ids, offsets, vocab_size, first_row)
        mask = mask_lists.flatten().to_numpy(zero_copy_only=False) != 0
        counts += np.bincount(ids[mask], minlength=vocab_size)
        first_row += batch.num_rows
    return counts


def _offsets(lists: pa.ListArray, first_row: int) -> NDArray[np.int64]:
    if lists.null_count:
        absent = first_row + int(np.argmax(np.asarray(lists.is_null())))
        raise EvidenceError(f"row {absent} has no tokens or no mask at all")
    offsets: NDArray[np.int64] = np.asarray(lists.offsets, dtype=np.int64) - lists.offsets[0].as_py()
    return offsets


def _require_in_range(ids: NDArray[np.int64], offsets: NDArray[np.int64], vocab_size: int, first_row: int) -> None:
    if len(ids) == 0 or (ids.min() >= 0 and ids.max() < vocab_size):
        return
    position = int(np.argmax((ids < 0) | (ids >= vocab_size)))
    row = first_row + int(np.searchsorted(offsets, position, side="right")) - 1
    raise EvidenceError(
        f"row {row} holds token id {ids[position]}; the target has ids 0 to {vocab_size - 1}. "
        "Was the corpus made with another target?"
    )


def choose_vocabulary(
    counts_V: NDArray[np.int64], draft_size: int, pinned_ids: tuple[int, ...] = ()
) -> VocabularyMap | None:
    """Return the map to the most frequent tokens; None when the draft keeps the whole vocabulary.

    Pinned ids come first, then by count, equal counts by id; the same choice as speculators' own when nothing is
    pinned.
    Raises RecipeError: draft_size or pinned_ids impossible; EvidenceError: counts that are no counts.
    """
    _require_counts(counts_V)
    vocab_size = len(counts_V)
    _require_sizes(draft_size, pinned_ids, vocab_size)
    if draft_size == vocab_size:
        return None
    rank_V = counts_V.copy()
    rank_V[list(pinned_ids)] = counts_V.max() + 1
    chosen_W = np.sort(np.argsort(-rank_V, kind="stable")[:draft_size])
    t2d_V = np.zeros(vocab_size, np.bool_)
    t2d_V[chosen_W] = True
    return VocabularyMap(
        t2d=t2d_V,
        d2t=(chosen_W - np.arange(draft_size)).astype(np.int64),
        coverage=float(counts_V[chosen_W].sum() / counts_V.sum()),
        num_without_evidence=int(np.count_nonzero(counts_V[chosen_W] == 0)),
    )


def _require_counts(counts_V: NDArray[np.int64]) -> None:
    if counts_V.ndim != 1 or not np.issubdtype(counts_V.dtype, np.integer):
        raise EvidenceError(f"token counts are {counts_V.dtype} {counts_V.shape}; expected integers [V]")
    if counts_V.size == 0 or counts_V.min() < 0 or counts_V.max() == 0:
        raise EvidenceError("the corpus has no supervised token to build a vocabulary from (or a negative count)")


def _require_sizes(draft_size: int, pinned_ids: tuple[int, ...], vocab_size: int) -> None:
    if isinstance(draft_size, bool) or not isinstance(draft_size, int) or not 1 <= draft_size <= vocab_size:
        raise RecipeError(f"vocabulary.draft_size is {draft_size!r}; expected 1 to {vocab_size}, the target's size")
    outside = [token for token in pinned_ids if not 0 <= token < vocab_size]
    if outside:
        raise RecipeError(f"vocabulary.pinned_ids holds {outside}; the target has ids 0 to {vocab_size - 1}")
    if len(set(pinned_ids)) > draft_size:
        raise RecipeError(f"{len(set(pinned_ids))} pinned ids do not fit into a draft vocabulary of {draft_size}")


def save_map(vocabulary: VocabularyMap, folder: Path) -> tuple[Path, Path]:
    """Write t2d.npy and d2t.npy and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (folder / T2D_NAME, folder / D2T_NAME)
    np.save(paths[0], vocabulary.t2d)
    np.save(paths[1], vocabulary.d2t)
    return paths


def load_map(folder: Path) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return t2d [V] and d2t [W]. Raises EvidenceError: absent, wrong types, or two maps that disagree."""
    try:
        t2d, d2t = (np.load(folder / name, allow_pickle=False) for name in (T2D_NAME, D2T_NAME))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{folder} has no readable vocabulary map ({T2D_NAME}, {D2T_NAME}): {error}") from error
    if t2d.ndim != 1 or t2d.dtype != np.bool_ or d2t.ndim != 1 or d2t.dtype != np.int64:
        raise EvidenceError(f"{folder}: t2d is {t2d.dtype} {t2d.shape}, d2t {d2t.dtype} {d2t.shape}; not a map")
    if not np.array_equal(np.flatnonzero(t2d), np.arange(len(d2t)) + d2t):
        raise EvidenceError(f"{folder}: t2d and d2t name different target ids; make the vocabulary again")
    return t2d, d2t
