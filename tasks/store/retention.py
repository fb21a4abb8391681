"""The retention policy: what nobody needs any more, as a plan; nothing is touched here.

Kept are, with everything they were made from: the champions and those before them, the newest packages of each target,
whatever a run uses now, and whatever is young. Hidden states go as soon as a draft made from them passed its checks,
because a finished draft is found again without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.recipe.plan import Kind, Plan
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.inventory import KINDS, Inventory, Stored
from tasks.store.objects import Upload

Rule = Literal["states", "unfinished", "left over", "unreferenced", "upload", "marker", "scratch"]
GOOD_OUTCOMES = ("PASS", "WARN")
NEEDED_FOR: dict[str, Kind] = {"states": "draft"}  # large, and read by that one stage only
SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Policy:
    """How much is kept; work younger than older_than_s is never taken for left behind."""

    keep_runs: int = 5
    older_than_s: float = 24 * 3600.0


@dataclass(frozen=True)
class Removal:
    """One thing to remove, and why. ref: what must not be in use; keys: some of its objects, empty for all."""

    rule: Rule
    what: str
    why: str
    num_bytes: int = 0
    ref: ArtifactRef | None = None
    keys: tuple[str, ...] = ()
    upload: Upload | None = None
    path: Path | None = None


@dataclass(frozen=True)
class Removals:
    """The plan: what goes, what stays, and what could not be judged."""

    removals: tuple[Removal, ...]
    num_kept: int
    bytes_kept: int
    notes: tuple[str, ...] = ()


def why_not_needed(artifacts: Artifacts, plan: Plan, kind: Kind) -> str | None:
    """Return why an artifact of a plan that is gone need not be made again: the only one made from it is finished."""
    reader = NEEDED_FOR.get(kind)
    if reader is None:
        return None
    ref = ArtifactRef(kind=reader, fingerprint=plan.fingerprint(reader))
    manifest = artifacts.find(ref)
    return f"not needed: {ref} was made from them at {manifest.created} and is finished" if manifest else None


def hours(seconds: float) -> str:
    """Return an age in words."""
    return f"{seconds / 3600:.0f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def plan_removals(seen: Inventory, policy: Policy) -> Removals:
    """Return what the policy removes from what was seen, what is made from something before that."""
    kept, notes = kept_refs(seen, policy), _blockers(seen, policy)
    good, half_trained = _good_drafts(seen), _half_trained(seen, policy)
    removals = []
    for stored in sorted(seen.stored.values(), key=lambda found: -KINDS.index(found.ref.kind)):
        if stored.ref in seen.in_use or stored.state == "newer":
            continue
        removal = _states(stored, good, half_trained) or _unfinished(stored, kept, policy)
        if removal is None and not notes and stored.ref not in kept:
            removal = _unreferenced(stored, policy)
        if removal is None:
            removal = _left_over(stored, policy)
        if removal is not None:
            removals.append(removal)
    whole = {removal.ref for removal in removals if not removal.keys}
    stay = [stored for ref, stored in seen.stored.items() if ref not in whole]
    removals += [*_uploads(seen, policy), *_markers(seen)]
    return Removals(tuple(removals), len(stay), sum(stored.num_bytes for stored in stay), tuple(notes))


def kept_refs(seen: Inventory, policy: Policy) -> frozenset[ArtifactRef]:
    """Return all artifacts that something kept refers to, the roots included."""
    by_fingerprint = {ref.fingerprint: ref for ref in seen.stored}
    about = _about(seen)
    kept: set[ArtifactRef] = set()
    todo = list(_roots(seen, policy))
    while todo:
        ref = todo.pop()
        if ref in kept:
            continue
        kept.add(ref)
        stored = seen.stored.get(ref)
        named = stored.manifest.inputs.values() if stored and stored.manifest else ()
        todo += [by_fingerprint[name] for name in named if name in by_fingerprint]
        todo += [*(stored.uses if stored else ()), *about.get(ref, ())]
    return frozenset(kept)


def _roots(seen: Inventory, policy: Policy) -> Iterator[ArtifactRef]:
    yield from seen.in_use
    packages: dict[str, list[Stored]] = {}
    for stored in seen.stored.values():
        is_package = stored.ref.kind == "package" and stored.manifest is not None
        served = stored.manifest.inputs.get("draft") if is_package and stored.manifest else None
        is_champion = stored.ref.fingerprint in seen.champions or served in seen.champions
        if is_champion or stored.age_s < policy.older_than_s:
            yield stored.ref
        if is_package and stored.manifest and stored.state == "finished":
            packages.setdefault(str(stored.manifest.facts.get("target")), []).append(stored)
    for of_target in packages.values():
        newest = sorted(of_target, key=lambda stored: stored.age_s)[: policy.keep_runs]
        yield from (stored.ref for stored in newest)


def _about(seen: Inventory) -> dict[ArtifactRef, list[ArtifactRef]]:
    """Return what says something about an artifact and is small: verdicts and measurements of drafts, releases."""
    about: dict[ArtifactRef, list[ArtifactRef]] = {}
    for ref, stored in seen.stored.items():
        subject = {"verdict": "draft", "measurement": "draft", "release": "verdict"}.get(ref.kind)
        named = stored.manifest.inputs.get(subject) if subject and stored.manifest else None
        if subject and named:
            about.setdefault(ArtifactRef(kind=subject, fingerprint=named), []).append(ref)
    return about


def _blockers(seen: Inventory, policy: Policy) -> list[str]:
    """Return why it cannot be known what is referred to; then nothing counts as unreferenced."""
    newer = [str(ref) for ref, stored in seen.stored.items() if stored.state == "newer"]
    unknown = [
        str(ref)
        for ref, stored in seen.stored.items()
        if stored.state == "unfinished" and ref.kind != KINDS[0] and not stored.uses
        if stored.age_s < policy.older_than_s
    ]
    stays = "so nothing was judged as unreferenced"
    notes = [f"a newer Draftworks wrote {', '.join(newer)}, {stays}; upgrade and run gc again"] if newer else []
    if unknown:
        notes.append(f"what {', '.join(unknown)} (unfinished) is made from is not known, {stays}; finish or wait")
    return notes


def _states(stored: Stored, good: Mapping[str, ArtifactRef], half_trained: Iterable[Stored]) -> Removal | None:
    draft = good.get(stored.ref.fingerprint) if stored.ref.kind in NEEDED_FOR else None
    if draft is None or any(_may_need(half, stored.ref) for half in half_trained):
        return None
    return _whole(stored, "states", f"{draft}, made from them, passed its checks")


def _good_drafts(seen: Inventory) -> dict[str, ArtifactRef]:
    """Return, by the fingerprint of its hidden states, a finished draft that passed its checks."""
    manifests = [stored.manifest for stored in seen.stored.values() if stored.state == "finished" and stored.manifest]
    passed = {
        verdict.inputs.get("draft")
        for verdict in manifests
        if verdict.kind == "verdict" and verdict.facts.get("outcome") in GOOD_OUTCOMES
    }
    return {
        draft.inputs["states"]: ArtifactRef(kind="draft", fingerprint=draft.fingerprint)
        for draft in manifests
        if draft.kind == "draft" and draft.fingerprint in passed and "states" in draft.inputs
    }


def _half_trained(seen: Inventory, policy: Policy) -> list[Stored]:
    """Return the unfinished drafts that are young enough to be continued."""
    return [
        stored
        for stored in seen.stored.values()
        if stored.ref.kind == "draft" and stored.state != "finished" and stored.has_parts
        if stored.age_s < policy.older_than_s
    ]


def _may_need(draft: Stored, states: ArtifactRef) -> bool:
    if draft.manifest is not None:
        return draft.manifest.inputs.get(states.kind) == states.fingerprint
    return not draft.uses or states in draft.uses


def _unfinished(stored: Stored, kept: frozenset[ArtifactRef], policy: Policy) -> Removal | None:
    is_damaged = stored.state == "damaged"
    if not (is_damaged or stored.state == "unfinished") or stored.age_s < policy.older_than_s:
        return None
    if is_damaged and stored.ref in kept:
        return None  # what is left of a champion is not thrown away
    seen = "its files are not those of its manifest" if is_damaged else "it has no manifest"
    return _whole(stored, "unfinished", f"{seen}, and nothing was added for {hours(stored.age_s)}")


def _unreferenced(stored: Stored, policy: Policy) -> Removal | None:
    if stored.state != "finished" or stored.age_s < policy.older_than_s:
        return None
    return _whole(stored, "unreferenced", "no champion, no kept package and no running run refers to it")


def _left_over(stored: Stored, policy: Policy) -> Removal | None:
    if stored.state != "finished":
        return None
    old = [entry for entry in stored.unlisted() if entry.age_s >= policy.older_than_s]
    if not old:
        return None
    what = f"{stored.ref}: {len(old)} objects"
    num_bytes = sum(entry.size_bytes for entry in old)
    keys = tuple(entry.key for entry in old)
    return Removal("left over", what, "its manifest does not list them", num_bytes, stored.ref, keys)


def _whole(stored: Stored, rule: Rule, why: str) -> Removal:
    return Removal(rule, str(stored.ref), why, stored.num_bytes, stored.ref)


def _uploads(seen: Inventory, policy: Policy) -> Iterator[Removal]:
    in_use = tuple(ref.prefix for ref in seen.in_use)
    for upload in seen.uploads or ():
        if upload.age_s >= policy.older_than_s and not upload.key.startswith(in_use):
            why = f"begun {hours(upload.age_s)} ago and never completed"
            yield Removal("upload", f"parts of {_short(upload.key)}", why, upload=upload)


def _markers(seen: Inventory) -> Iterator[Removal]:
    for key in seen.markers:
        yield Removal("marker", _short(key), "its run ended without removing it", keys=(key,))


def _short(key: str) -> str:
    """Return a key with shortened fingerprints, as people see them."""
    return "/".join(part[:SHOWN_DIGITS] if len(part) == 64 else part for part in key.split("/"))
