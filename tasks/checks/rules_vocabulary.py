"""VOC: the map between draft tokens and target tokens.

d2t holds offsets: target id = draft id + d2t[draft id]. Legend: V target vocabulary, D draft vocabulary.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, listed, skip
from tasks.checks.maps import INTEGER_DTYPES

Findings = Iterator[Finding]

# A draft vocabulary of fewer tokens cannot even hold all bytes; nobody serves one.
TOY_VOCABULARY = 256


def vocabularies_fit(evidence: Evidence) -> Findings:
    """VOC001: D <= V, and V is the target's own vocabulary size (of its config, not of its tokenizer)."""
    config = evidence.config
    draft, whole = config.draft_vocab, config.target_vocab
    if draft is not None and whole is not None and draft > whole:
        yield fail(
            f"draft_vocab_size {draft} is larger than vocab_size {whole}.", observed=draft, expected=f"<= {whole}"
        )
    theirs = evidence.target.size("vocab_size") if evidence.target else None
    if whole is not None and theirs is not None and whole != theirs:
        yield fail(
            f"vocab_size in {config.place} is {whole}, the target's is {theirs}"
            + (": it holds the draft's size, but the engine expects the target's." if whole == draft else "."),
            observed=whole,
            expected=theirs,
        )


def map_is_there(evidence: Evidence) -> Findings:
    """VOC002: a reduced vocabulary has its d2t, a full one has none."""
    stored = "d2t" in evidence.tensors
    sizes = evidence.sizes
    assert sizes is not None
    if evidence.is_pruned and not stored:
        yield fail(
            f"d2t is missing although draft_vocab_size {sizes['D']} < {sizes['V']}: vLLM takes draft token i for "
            f"target token i, so only ids 0 to {sizes['D'] - 1} could be proposed.",
            observed="no d2t" + ("" if "t2d" in evidence.tensors else " and no t2d"),
            expected=f"d2t [{sizes['D']}] int64",
        )
    if not evidence.is_pruned and stored:
        yield fail(
            "d2t is in the file, but the draft vocabulary is the whole vocabulary: vLLM refuses it.",
            observed="d2t",
            expected="no d2t, or draft_vocab_size set to its length",
        )


def map_has_right_form(evidence: Evidence) -> Findings:
    """VOC008: d2t is an integer vector of D, t2d a boolean one of V (the config's V, not the tokenizer's length)."""
    sizes = evidence.sizes
    assert sizes is not None
    d2t, t2d = evidence.tensors.get("d2t"), evidence.tensors.get("t2d")
    if d2t is not None and (d2t.dtype not in INTEGER_DTYPES or d2t.shape != (sizes["D"],)) and evidence.is_pruned:
        yield fail(
            f"d2t is {d2t.dtype} {list(d2t.shape)}; it must be an integer for each of {sizes['D']} draft tokens.",
            observed=f"{d2t.dtype} {list(d2t.shape)}",
            expected=f"I64 [{sizes['D']}]",
        )
    if t2d is not None and (t2d.dtype != "BOOL" or t2d.shape != (sizes["V"],)):
        yield fail(
            f"t2d is {t2d.dtype} {list(t2d.shape)}; it must be a boolean for each of the {sizes['V']} ids of the "
            "target's config, which can be more than its tokenizer has.",
            observed=f"{t2d.dtype} {list(t2d.shape)}",
            expected=f"BOOL [{sizes['V']}]",
        )
    if d2t is not None and t2d is None:
        yield fail("t2d is not stored; vLLM does not read it, resuming a training does.", severity="note")


def looks_absolute(d2t_D: NDArray[np.int64], marked: NDArray[np.int64] | None, num_ids: int) -> bool:
    """Return whether d2t holds target ids instead of offsets."""
    if not len(d2t_D) or not d2t_D.any():
        return False
    if marked is not None and np.array_equal(d2t_D, marked):
        return True
    ids_D = np.arange(len(d2t_D)) + d2t_D
    rising = bool((np.diff(d2t_D) > 0).all() and d2t_D[0] >= 0 and d2t_D[-1] < num_ids)
    return rising and not is_usable(ids_D, num_ids)


def is_usable(ids_D: NDArray[np.int64], num_ids: int) -> bool:
    """Return whether all ids are in range and distinct."""
    return bool(ids_D.min() >= 0 and ids_D.max() < num_ids and len(np.unique(ids_D)) == len(ids_D))


def offsets_are_right(evidence: Evidence) -> Findings:
    """VOC003: draft id + offset is a distinct target id in [0, V)."""
    d2t_D, ids_D, sizes = evidence.maps.d2t_D, evidence.maps.ids_D, evidence.sizes
    assert d2t_D is not None and ids_D is not None and sizes is not None
    whole = sizes["V"]
    if looks_absolute(d2t_D, evidence.maps.marked, whole):
        yield fail(
            "d2t holds absolute ids, expected offsets (target id = draft id + d2t): vLLM reads past the vocabulary on "
            "the first request, or drafts wrong tokens.",
            observed=f"{d2t_D[:6].tolist()}...",
            expected=f"{(d2t_D - np.arange(len(d2t_D)))[:6].tolist()}...",
            mend="subtract arange(D) from d2t (--fix OUT does)",
        )
        return
    outside = np.flatnonzero((ids_D < 0) | (ids_D >= whole))
    if len(outside):
        at = int(outside[0])
        yield fail(
            f"{len(outside)} draft tokens map outside the vocabulary: draft id {at} to {int(ids_D[at])}.",
            observed=int(ids_D[at]),
            expected=f"[0, {whole})",
        )
    repeated = len(ids_D) - len(np.unique(ids_D))
    if repeated:
        yield fail(
            f"{repeated} draft tokens map to a target token that another one has already.",
            observed=f"{len(ids_D) - repeated} distinct ids",
            expected=f"{len(ids_D)}",
        )


def offsets_are_sorted(evidence: Evidence) -> Findings:
    """VOC004: ids rise with the draft id, as every known tool writes them."""
    ids_D = evidence.maps.ids_D
    assert ids_D is not None
    if not (np.diff(ids_D) > 0).all():
        falls = int((np.diff(ids_D) <= 0).sum())
        yield fail(f"The mapped ids are not sorted ({falls} times a smaller id follows): made by another tool?")


def maps_agree(evidence: Evidence) -> Findings:
    """VOC005: t2d marks exactly the ids that d2t reaches."""
    ids_D, marked, sizes = evidence.maps.ids_D, evidence.maps.marked, evidence.sizes
    assert ids_D is not None and sizes is not None
    if marked is None:
        return
    offsets = evidence.maps.d2t_D
    if offsets is not None and looks_absolute(offsets, marked, sizes["V"]):
        return
    missing, extra = np.setdiff1d(marked, ids_D), np.setdiff1d(ids_D, marked)
    if len(missing) or len(extra):
        yield fail(
            f"t2d and d2t disagree on {len(missing) + len(extra)} tokens: they come from two different maps, so the "
            "head's rows belong to one of them only.",
            observed=f"t2d marks {len(marked)} ids; {len(missing)} of them d2t never reaches",
            expected=f"the same {len(ids_D)} ids",
        )


def end_can_be_drafted(evidence: Evidence) -> Findings:
    """VOC006: the target's end-of-sequence and end-of-turn ids are in the draft vocabulary.

    Without them no draft can end an answer: the text stays right, one step per answer is lost, so it is a warning.
    It stays a note for a toy vocabulary (fewer than 256 tokens) that was plainly chosen by something else than use:
    no special token in it, and not all ordinary ids from the bottom up. Where such a small map holds other special
    ids, or is one block that begins right after them, the end was left out by a rule, and the warning stands.
    """
    ids_D, target = evidence.maps.ids_D, evidence.target
    assert ids_D is not None and target is not None
    if not target.end_ids:
        yield skip("the target's configs name no end token")
        return
    drafted = set(ids_D.tolist())
    missing = [one for one in target.end_ids if one not in drafted]
    if not missing:
        return
    chosen = len(ids_D) >= TOY_VOCABULARY or bool(drafted & set(target.special_ids)) or _is_block(ids_D)
    yield fail(
        f"The draft can never propose end-of-turn (id {listed(missing)}), so no draft reaches past an answer's end.",
        observed=f"{len(ids_D)} ids, {listed(missing)} not among them",
        expected=f"the target's end ids {list(target.end_ids)}",
        mend="pin the end ids when the vocabulary is chosen (vocabulary.pin_end_of_turn)",
        severity="warning" if chosen else "note",
    )


def _is_block(ids_D: NDArray[np.int64]) -> bool:
    return len(ids_D) > 1 and bool((np.diff(ids_D) == 1).all())


def vocabulary_was_chosen(evidence: Evidence) -> Findings:
    """VOC007: the draft vocabulary is a choice, not simply one block of ids."""
    ids_D = evidence.maps.ids_D
    assert ids_D is not None
    if _is_block(ids_D):
        first, last = int(ids_D[0]), int(ids_D[-1])
        what = "the first D ids" if first == 0 else f"the block of ids {first} to {last}"
        yield fail(
            f"The draft vocabulary is {what}: no count of tokens led to it. Intended?",
            observed=f"d2t is {first} everywhere",
        )
