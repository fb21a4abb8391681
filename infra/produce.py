"""The commands `draftworks produce` and `draftworks demo`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.running import environment
from tasks.errors import RecipeError
from tasks.recipe.recipe import load_recipe
from tasks.recipe.settings import PROJECT_ROOT, Settings, load_settings

if TYPE_CHECKING:
    from tasks.summary import RunSummary

DEMO_RECIPE = PROJECT_ROOT / "deployments" / "recipes" / "demo.toml"
JSON_KEYS = {"run", "draft", "verdict", "acceptance_length", "acceptance_length_general", "speedup", "report"}
EXIT_FAILED = 1


def register(app: typer.Typer) -> None:
    """Add produce and demo to the command line."""
    app.command("produce")(produce)
    app.command("demo")(demo)


def use_services(settings: Settings) -> None:
    """Point this process at the services of `draftworks up`. Raises RecipeError when there is no store at all.

    Must run before Prefect is imported, because Prefect reads its environment then.
    """
    os.environ.update(environment(settings.home_dir))
    if not os.environ.get("DRAFTWORKS_S3_ENDPOINT") and not os.environ.get("AWS_ACCESS_KEY_ID"):
        raise RecipeError(
            "there is no object store: nothing is up, and neither DRAFTWORKS_S3_ENDPOINT nor AWS credentials are set. "
            "Run `draftworks up`, or point these variables at your own bucket."
        )


def print_summary(summary: "RunSummary", as_json: bool) -> None:
    """Print the run's table and where to click; with as_json one JSON object as the last line."""
    from rich.console import Console

    from tasks.pages.report import terminal_summary

    Console().print(terminal_summary(summary.run, summary.rows, summary.conclusion))
    typer.echo(f"draft: {summary.draft or 'none'}")
    typer.echo(f"run page: {summary.report}")
    if as_json:
        typer.echo(json.dumps(summary.model_dump(mode="json", include=JSON_KEYS)))


def produce(
    recipe: Annotated[Path, typer.Argument(help="Recipe file, such as deployments/recipes/smoke.toml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Make a draft: run all stages of a recipe here, reusing whatever an earlier run made.

    Exit status: 0 the draft passed its checks, 1 it did not, 2 the run could not be done.
    """
    asked, settings = load_recipe(recipe), load_settings()
    use_services(settings)
    from flows.produce import produce_draft
    from tasks.prepare import plan_production

    # What is wrong with the request is said here, in one message, before there is a run.
    plan_production(asked, load_settings())
    summary = produce_draft(asked)
    print_summary(summary, as_json)
    if summary.verdict == "FAIL":
        raise typer.Exit(EXIT_FAILED)


def demo() -> None:
    """Show the whole job on this machine: start the services, make a draft for a small target, print the report."""
    from infra import services

    settings = load_settings()
    request = services.UpRequest(
        home=settings.home_dir, bucket=settings.s3_bucket, s3_endpoint=settings.s3_endpoint, say=typer.echo
    )
    running = services.up(request)
    typer.echo(f"watch it at {running.ui_url}; stop the services later with `draftworks down`")
    # A process of its own: Prefect takes its server's address from the environment when it is imported.
    argv = [sys.executable, "-m", "infra.cli", "produce", str(DEMO_RECIPE), "--json"]
    done = subprocess.run(argv, cwd=PROJECT_ROOT, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
