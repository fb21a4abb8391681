"""What a recipe would do now: per artifact, reused or to do, what it takes, and which input made it new.

corpus   reused                                      made 2026-01-31T02:00:00+00:00
draft    to do    334 MiB   13 min (rule of thumb)   training.epochs is 6, was 3 (nearest: d4587757a1e0)
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.pages.estimate import Estimate, StageEstimate
from tasks.pages.parts import human_bytes, human_seconds
from tasks.recipe.form import Section
from tasks.recipe.plan import ENGINE_KINDS, Kind, Link, Plan, make_plan
from tasks.recipe.recipe import Recipe, load_recipe
from tasks.recipe.settings import Settings, load_settings
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Manifest
from tasks.store.retention import why_not_needed


@dataclass(frozen=True)
class Explained:
    """One artifact of the plan: is it there, and what says so."""

    kind: Kind
    fingerprint: str
    is_done: bool
    reason: str


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _still_asked(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return an older recipe without the fields that recipes no longer have: no request of today can hold them."""
    kept: dict[str, Any] = {}
    for name, value in recipe.items():
        section = field.annotation if (field := Recipe.model_fields.get(name)) else None
        if isinstance(section, type) and issubclass(section, Section) and isinstance(value, Mapping):
            kept[name] = {key: inner for key, inner in value.items() if key in section.model_fields}
        elif section is not None:
            kept[name] = value
    return kept


def _differences(link: Link, plan: Plan, other: Manifest) -> list[str]:
    """Return in words how this request differs from the one that made the other artifact."""
    try:
        old_recipe = Recipe.model_validate(_still_asked(other.provenance.recipe))
    except ValidationError:
        return ["it was made from a recipe of another format"]
    now = dict(_leaves(link.asked))
    then = dict(_leaves(make_plan(old_recipe, plan.inputs).links[link.kind].asked))
    found = [
        f"{name} changed ({other.inputs.get(name, 'none')[:12]} -> {value[:12]})"
        for name, value in link.inputs.items()
        if other.inputs.get(name) != value
    ]
    found += [f"{name} is gone" for name in other.inputs if name not in link.inputs]
    found += [
        f"{path} is {now.get(path)!r}, was {then.get(path)!r}"
        for path in sorted(now.keys() | then.keys())
        if now.get(path) != then.get(path)
    ]
    if link.kind in ENGINE_KINDS and other.provenance.engine != plan.inputs.engine:
        found.append(f"engine is {plan.inputs.engine}, was {other.provenance.engine}")
    return found


def _why_new(link: Link, plan: Plan, artifacts: Artifacts) -> str:
    made = [artifacts.find(ref) for ref in artifacts.refs(link.kind)]
    compared = [(_differences(link, plan, other), other) for other in made if other is not None]
    if not compared:
        return f"nothing of kind {link.kind} was made yet"
    differences, nearest = min(compared, key=lambda pair: len(pair[0]))
    said = "; ".join(differences) or "the target (its config, tokenizer or weights) is another one"
    return f"{said} (nearest: {nearest.fingerprint[:12]})"


def explain(plan: Plan, artifacts: Artifacts) -> list[Explained]:
    """Return what each artifact of the plan would need, in order; a release is the nightly flow's, after its gate."""
    rows = []
    for kind, link in plan.links.items():
        if kind == "release":
            continue
        ref = ArtifactRef(kind=kind, fingerprint=link.fingerprint)
        manifest = artifacts.find(ref)
        if manifest is not None:
            rows.append(Explained(kind, link.fingerprint, True, f"made {manifest.created}"))
            continue
        if not_needed := why_not_needed(artifacts, plan, kind):
            rows.append(Explained(kind, link.fingerprint, True, not_needed))
            continue
        parts = len(artifacts.parts(ref))
        unfinished = f"; {parts} parts are stored and will be continued" if parts else ""
        rows.append(Explained(kind, link.fingerprint, False, _why_new(link, plan, artifacts) + unfinished))
    return rows


def explain_recipe(recipe: Recipe, settings: Settings) -> tuple[list[Explained], Estimate]:
    """Return what a recipe would do now and what it takes; runs the same free checks as the flow, raises their errors.

    So it raises RecipeError when the estimate passes the recipe's budget or the free disk.
    """
    from tasks.prepare import plan_production
    from tasks.stage import open_artifacts

    plan, estimate = plan_production(recipe, settings)
    return explain(plan, open_artifacts(settings)), estimate


def _row(row: Explained, stage: StageEstimate) -> tuple[str, ...]:
    from rich.markup import escape

    name, reason = f"{row.kind}/{row.fingerprint[:12]}", escape(row.reason)
    if row.is_done:
        now = "not needed" if row.reason.startswith("not needed") else "reused"
        return name, f"[green]{now}[/green]", "", "", reason
    time = f"{human_seconds(stage.seconds)}\n[dim]{stage.basis}[/dim]"
    return name, "[yellow]to do[/yellow]", human_bytes(stage.store_bytes), time, reason


def _sums(estimate: Estimate) -> tuple[str, ...]:
    at_most = f"all that is to do; at most {human_bytes(estimate.scratch_bytes)} on scratch"
    return "in all", "", human_bytes(estimate.store_bytes), human_seconds(estimate.seconds), at_most


def _numbers(recipe: Recipe, rows: list[Explained], estimate: Estimate) -> dict[str, Any]:
    """Return the explanation as plain JSON values."""
    sums = {name: getattr(estimate, name) for name in ("store_bytes", "scratch_bytes", "seconds")}
    artifacts = [{**asdict(row), **asdict(estimate.stage(row.kind))} for row in rows]
    return {"recipe": recipe.name, "artifacts": artifacts, "estimate": sums}


def print_explanation(path: Path, as_json: bool) -> None:
    """Print one row per artifact of a recipe; with as_json one JSON object as the last line."""
    from rich.console import Console
    from rich.table import Table

    recipe = load_recipe(path)
    rows, estimate = explain_recipe(recipe, load_settings())
    table = Table("artifact", "now", "size", "time", "why", title=recipe.name, title_justify="left")
    for row in rows:
        table.add_row(*_row(row, estimate.stage(row.kind)))
    table.add_section()
    table.add_row(*_sums(estimate))
    Console().print(table)
    if as_json:
        numbers = json.dumps(_numbers(recipe, rows, estimate))
        Console(soft_wrap=True, highlight=False, markup=False).print(numbers)
