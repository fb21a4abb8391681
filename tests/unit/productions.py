"""Finished and unfinished artifacts of a small production, in memory or in a real store, for tests of what gc keeps."""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.recipe.plan import Kind, Plan, PlanInputs, make_plan
from tasks.recipe.recipe import Recipe, parse_recipe
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.inventory import State, Stored
from tasks.store.manifest import Cost, FileEntry, Manifest, PartManifest, Provenance
from tasks.store.objects import Entry, ObjectStore

PARENTS: dict[Kind, tuple[Kind, ...]] = {
    "corpus": (),
    "states": ("corpus",),
    "vocabulary": ("corpus",),
    "draft": ("corpus", "states", "vocabulary"),
    "verdict": ("draft",),
    "measurement": ("draft",),
    "package": ("draft", "verdict", "measurement"),
    "release": ("verdict", "measurement"),
}
DATA = b"x" * 1000
PROVENANCE = Provenance(argv=("test",), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={})


def ref(kind: Kind, name: str) -> ArtifactRef:
    """Return the reference of an artifact of a named production."""
    return ArtifactRef(kind=kind, fingerprint=hashlib.sha256(f"{kind} {name}".encode()).hexdigest())


@dataclass
class Production:
    """One production by its name; shared: the kinds that it took from another one."""

    name: str
    outcome: str = "PASS"
    target: str = "t"
    champion: str | None = None
    shared: Mapping[Kind, str] = field(default_factory=dict)

    def ref(self, kind: Kind) -> ArtifactRef:
        """Return the reference of its artifact of a kind."""
        return ref(kind, self.shared.get(kind, self.name))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds that it makes itself; a failed draft is not measured."""
        not_made = {"measurement", "package", "release"} if self.outcome == "FAIL" else set()
        return tuple(kind for kind in PARENTS if kind not in {*self.shared, *not_made})

    def manifest(self, kind: Kind) -> Manifest:
        """Return the manifest of its artifact of a kind, which has one file."""
        inputs: dict[str, str] = {parent: self.ref(parent).fingerprint for parent in PARENTS[kind]}
        if kind == "corpus":
            inputs["prompts"] = "b" * 64
        if kind == "measurement" and self.champion:
            inputs["champion"] = self.champion
        facts: dict[str, Any] = {"verdict": {"outcome": self.outcome}, "package": {"target": self.target}}.get(kind, {})
        return Manifest(
            kind=kind,
            fingerprint=self.ref(kind).fingerprint,
            stage_version=1,
            inputs=inputs,
            files=(FileEntry(path="data.bin", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest()),),
            account=None,
            cost=Cost(seconds=1),
            provenance=PROVENANCE,
            facts=facts,
            created="2026-01-31T02:00:00+00:00",
        )

    def make(self, store: ObjectStore, *left_out: Kind) -> "Production":
        """Make its artifacts in a store, but some."""
        artifacts = Artifacts(store)
        for kind in self.kinds:
            if kind not in left_out:
                artifacts.put_bytes(self.ref(kind), "data.bin", DATA)
                artifacts.finish(self.manifest(kind))
        return self

    def seen(self, hours: float, *left_out: Kind) -> list[Stored]:
        """Return its artifacts, but some, as an inventory would show them at an age."""
        return [self.seen_one(kind, hours) for kind in self.kinds if kind not in left_out]

    def seen_one(self, kind: Kind, hours: float, state: State = "finished", *more: Entry) -> Stored:
        """Return one artifact as an inventory would show it; more: further objects in its prefix."""
        own = self.ref(kind)
        entries = [Entry(f"{own.prefix}{name}", len(DATA), 3600 * hours) for name in ("data.bin", "manifest.json")]
        return Stored(own, (*entries, *more), state, self.manifest(kind))


def small_plan() -> tuple[Recipe, Plan]:
    """Return a recipe and its plan, which no target on disk is needed for."""
    sections = {"target": {"model": "t"}, "prompts": {"source": "p.jsonl"}, "benchmark": {"prompts": "h.jsonl"}}
    recipe = parse_recipe({"name": "small", **sections}, "test")
    given = PlanInputs(
        target_identity="a" * 64,
        published_name="owner/t",
        end_of_turn_ids=(2,),
        layer_ids=(2, 15, 27),
        engine={"vllm": "0.32.0"},
        prompts_sha256="b" * 64,
        held_out_sha256="c" * 64,
        general_sha256=None,
        champion="d" * 64,
    )
    return recipe, make_plan(recipe, given)


def make_planned(store: ObjectStore, plan: Plan, *left_out: Kind) -> None:
    """Make the artifacts of a plan in a store, but some."""
    artifacts = Artifacts(store)
    for kind in PARENTS:
        if kind not in left_out:
            own = ArtifactRef(kind=kind, fingerprint=plan.fingerprint(kind))
            artifacts.put_bytes(own, "data.bin", DATA)
            known = Production("planned").manifest(kind)
            artifacts.finish(
                known.model_copy(update={"fingerprint": own.fingerprint, "inputs": plan.links[kind].inputs})
            )


def seen_half_made(unfinished: ArtifactRef, hours: float, *uses: ArtifactRef) -> Stored:
    """Return an artifact that a killed stage left, as an inventory would show it."""
    names = ("part-0.bin", "parts/part-0.json")
    entries = tuple(Entry(f"{unfinished.prefix}{name}", 500, 3600 * hours) for name in names)
    return Stored(unfinished, entries, "unfinished", uses=uses)


def half_made(store: ObjectStore, unfinished: ArtifactRef) -> None:
    """Leave an artifact as a killed stage leaves it: one stored part, no manifest."""
    artifacts = Artifacts(store)
    entry = artifacts.put_bytes(unfinished, "part-0.bin", b"x" * 500)
    artifacts.put_part(unfinished, PartManifest(name="part-0", fingerprint=unfinished.fingerprint, files=(entry,)))


class Folder:
    """Where a localbucket server keeps the objects of one store; their times are the server's LastModified."""

    def __init__(self, store: ObjectStore, data: Path) -> None:
        """Look at the store's prefix below the server's data folder."""
        self.root = data / store.location.bucket / store.location.prefix

    def stored(self) -> set[str]:
        """Return the keys of all objects but leases."""
        paths = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return {str(path) for path in paths if path.parts[0] != "leases"}

    def age(self, hours: float, below: str = "") -> None:
        """Make everything that is stored now that old."""
        then = time.time() - 3600 * hours
        for path in (self.root / below).rglob("*"):
            if path.is_file():
                os.utime(path, (then, then))
