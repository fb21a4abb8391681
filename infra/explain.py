"""What a recipe would do now: per artifact, reused or to do, and which input made it new.

corpus      reused   s3://.../manifest.json is there, and its 3 files have the sizes it lists
draft       to do    training.epochs is 6, the nearest draft (d4587757a1e0) was made with 3
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.recipe.plan import ENGINE_KINDS, Kind, Link, Plan, make_plan
from tasks.recipe.recipe import Recipe, load_recipe
from tasks.recipe.settings import Settings, load_settings
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Manifest


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


def _differences(link: Link, plan: Plan, other: Manifest) -> list[str]:
    """Return in words how this request differs from the one that made the other artifact."""
    try:
        old_recipe = Recipe.model_validate(other.provenance.recipe)
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
        return f"there is no {link.kind} yet"
    differences, nearest = min(compared, key=lambda pair: len(pair[0]))
    said = "; ".join(differences) or "the target (its config, tokenizer or weights) is another one"
    return f"{said} (nearest: {nearest.fingerprint[:12]})"


def explain(plan: Plan, artifacts: Artifacts) -> list[Explained]:
    """Return what each artifact of the plan would need, in order."""
    rows = []
    for kind, link in plan.links.items():
        ref = ArtifactRef(kind=kind, fingerprint=link.fingerprint)
        manifest = artifacts.find(ref)
        if manifest is not None:
            rows.append(Explained(kind, link.fingerprint, True, f"made {manifest.created}"))
            continue
        parts = len(artifacts.parts(ref))
        unfinished = f"; {parts} parts are stored and will be continued" if parts else ""
        rows.append(Explained(kind, link.fingerprint, False, _why_new(link, plan, artifacts) + unfinished))
    return rows


def explain_recipe(recipe: Recipe, settings: Settings) -> list[Explained]:
    """Return what a recipe would do now; runs the same free checks as the flow. Raises their errors."""
    from tasks.prepare import plan_production
    from tasks.stage import open_artifacts

    return explain(plan_production(recipe, settings), open_artifacts(settings))


def print_explanation(path: Path, as_json: bool) -> None:
    """Print one row per artifact of a recipe; with as_json one JSON object as the last line."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    recipe = load_recipe(path)
    rows = explain_recipe(recipe, load_settings())
    table = Table("artifact", "now", "why", title=recipe.name, title_justify="left")
    for row in rows:
        now = "[green]reused[/green]" if row.is_done else "[yellow]to do[/yellow]"
        table.add_row(f"{row.kind}/{row.fingerprint[:12]}", now, escape(row.reason))
    Console().print(table)
    if as_json:
        Console(soft_wrap=True, highlight=False, markup=False).print(
            json.dumps({"recipe": recipe.name, "artifacts": [asdict(row) for row in rows]})
        )
