"""The command `draftworks gc`: what nobody needs any more, shown first, removed with --yes.

The last line of --json:

    {"deleted": false, "bytes": 5368709120, "removals": [{"rule": "states", "what": "states/9f86d081884c", "why": "...",
     "bytes": 5368709120, "kept_because": null}], "kept": {"artifacts": 14, "bytes": 734003200}, "notes": []}
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.running import read_running
from tasks.recipe.settings import Settings, load_settings

if TYPE_CHECKING:
    from tasks.store.collect import Outcome
    from tasks.store.objects import ObjectStore
    from tasks.store.retention import Policy, Removal, Removals

KEEP_RUNS = 5
OLDER_THAN_HOURS = 24.0
HELP = """Free space: remove from the store and the scratch folder what nobody needs any more.

What goes:

- hidden states, once a draft made from them passed its checks
- what nothing touched for --older-than-hours: unfinished artifacts,
  uploads, scratch folders, and objects that no manifest lists
- finished artifacts, as old as that, that nothing kept refers to
- the markers of runs that died

What stays:

- the champions, those before them, and their packages
- the newest --keep-runs packages of each target
- what these were made from, their verdicts and measurements
- what a running run makes or reads, wherever it runs
- whatever Draftworks did not write

Without --yes nothing is deleted. Exit status: 0 done, 2 it could not be done.
"""


def gc(
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only say what would be deleted.")] = False,
    keep_runs: Annotated[int, typer.Option(min=0, help="Packages to keep per target, the newest.")] = KEEP_RUNS,
    older_than_hours: Annotated[
        float, typer.Option(min=0, help="Younger work is left alone; it may be continued.")
    ] = OLDER_THAN_HOURS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Show what nobody needs any more; with --yes remove it."""
    from infra.produce import use_services
    from tasks.stage import open_artifacts
    from tasks.store.collect import Outcome
    from tasks.store.retention import Policy

    use_services(load_settings())
    settings, policy = load_settings(), Policy(keep_runs, 3600 * older_than_hours)
    store = open_artifacts(settings).store
    store.check_bucket()
    plan, local = look(store, settings, policy)
    outcomes = [Outcome(removal) for removal in (*plan.removals, *local)]
    if yes:
        outcomes = remove(store, plan, local, policy)
    print_outcomes(outcomes, plan, is_done=yes)
    if as_json:
        typer.echo(json.dumps(as_record(outcomes, plan, is_done=yes)))


def look(store: "ObjectStore", settings: Settings, policy: "Policy") -> tuple["Removals", tuple["Removal", ...]]:
    """Return what the policy removes from the store, and from this machine."""
    from infra import leftovers
    from tasks.store.inventory import take_inventory
    from tasks.store.retention import plan_removals

    seen = take_inventory(store)
    local = [*leftovers.scratch_removals(settings.scratch_dir, seen.in_use, policy.older_than_s)]
    running = read_running(settings.home_dir)
    plan = plan_removals(seen, policy)
    if running is not None and running.s3 is not None and running.s3_endpoint == settings.s3_endpoint:
        data = settings.home_dir / "s3"
        local += leftovers.embedded_removals(data, settings.s3_bucket, settings.s3_prefix, policy.older_than_s)
    elif seen.uploads is None:
        plan = replace(plan, notes=(*plan.notes, "this server cannot list unfinished uploads, so none were looked for"))
    return plan, tuple(local)


def remove(store: "ObjectStore", plan: "Removals", local: Sequence["Removal"], policy: "Policy") -> list["Outcome"]:
    """Carry out both plans."""
    from infra.leftovers import remove_leftovers
    from tasks.store.claims import leased
    from tasks.store.collect import carry_out

    done = list(carry_out(store, plan.removals))
    return [*done, *remove_leftovers(local, lambda: leased(store), policy.older_than_s)]


def as_record(outcomes: Sequence["Outcome"], plan: "Removals", *, is_done: bool) -> dict[str, Any]:
    """Return what --json prints."""
    rows = [
        {
            "rule": outcome.removal.rule,
            "what": outcome.removal.what,
            "why": outcome.removal.why,
            "bytes": outcome.removal.num_bytes,
            "kept_because": outcome.kept_because,
        }
        for outcome in outcomes
    ]
    return {
        "deleted": is_done,
        "bytes": freed(outcomes),
        "removals": rows,
        "kept": {"artifacts": plan.num_kept, "bytes": plan.bytes_kept},
        "notes": list(plan.notes),
    }


def freed(outcomes: Sequence["Outcome"]) -> int:
    """Return the bytes of what was, or would be, removed."""
    return sum(outcome.removal.num_bytes for outcome in outcomes if outcome.kept_because is None)


def print_outcomes(outcomes: Sequence["Outcome"], plan: "Removals", *, is_done: bool) -> None:
    """Print one row per removal, and the sums."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tasks.pages.parts import human_bytes

    console = Console()
    table = Table("what", "why", "size")
    table.columns[-1].justify = "right"
    for outcome in outcomes:
        removal = outcome.removal
        why = f"[yellow]kept: {escape(outcome.kept_because)}[/yellow]" if outcome.kept_because else escape(removal.why)
        table.add_row(escape(removal.what), why, human_bytes(removal.num_bytes) if removal.num_bytes else "")
    if outcomes:
        console.print(table)
    for note in plan.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"kept: {plan.num_kept} artifacts, {human_bytes(plan.bytes_kept)}")
    size = human_bytes(freed(outcomes))
    if not outcomes:
        typer.echo("nothing to delete")
    elif is_done:
        typer.echo(f"freed: {size}")
    else:
        typer.echo(f"would free: {size}; nothing was deleted; run again with --yes")


def register(app: typer.Typer) -> None:
    """Add gc to the command line."""
    app.command("gc", help=HELP)(gc)
