"""The command `draftworks doctor`: what can be checked without starting anything heavy, and what to do about it.

Exit status: 0 all fine, 1 a check failed, 2 it could not look. The last line of --json:

    {"outcome": "FAIL", "checks": [{"name": "disk", "outcome": "pass", "seen": "61.2 GiB free", "mend": ""}, ...]}
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra.install import COMPILERS, OLDEST_PYTHON
from infra.running import environment, read_running
from infra.target import NAME, is_complete
from tasks.errors import DraftworksError
from tasks.recipe.settings import Settings, load_settings

GIB = 1024**3
LEAST_DISK_BYTES = 5 * GIB  # hidden states of a small recipe, checkpoints, and the store beside them
LEAST_MEMORY_BYTES = 4 * GIB  # one vLLM server with the small target
PIPELINE_PACKAGES = {"prefect": "3.", "speculators": "0.9.", "hs-connectors": "0.9."}
ENGINE = "0.32."  # the engine whose rules the checks know
EXIT_FAILED = 1


@dataclass(frozen=True)
class Finding:
    """What one check saw; mend says what to do when it failed."""

    name: str
    outcome: Literal["pass", "fail"]
    seen: str
    mend: str = ""


def judge(name: str, is_fine: bool, seen: str, mend: str) -> Finding:
    """Return a finding; the mend is kept for a failed one."""
    return Finding(name, "pass" if is_fine else "fail", seen, "" if is_fine else mend)


def check_python(settings: Settings) -> Finding:
    """Look at the interpreter that runs this."""
    seen = f"{platform.python_version()} ({sys.executable})"
    return judge("python", sys.version_info[:2] >= OLDEST_PYTHON, seen, "Install Python 3.11, then ./infra/setup.")


def check_packages(settings: Settings) -> Finding:
    """Look at the packages of the pipeline environment."""
    found = {}
    for name in PIPELINE_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    is_fine = all(found[name].startswith(start) for name, start in PIPELINE_PACKAGES.items())
    seen = ", ".join(f"{name} {number}" for name, number in found.items())
    wanted = ", ".join(f"{name} {start}x" for name, start in PIPELINE_PACKAGES.items())
    return judge("pipeline packages", is_fine, seen, f"Expected {wanted}: run ./infra/setup.")


def check_vllm(settings: Settings) -> Finding:
    """Look at vLLM's interpreter and its version, without starting it."""
    from tasks.serving.engine import engine_build

    build = engine_build(settings.vllm_python)
    seen = f"{build['distribution']} {build['vllm']}, torch {build['torch']} ({settings.vllm_python})"
    return judge("vllm", build["vllm"].startswith(ENGINE), seen, f"Expected vLLM {ENGINE}x: run ./infra/setup.")


def check_compiler(settings: Settings) -> Finding:
    """Look for the compiler that vLLM needs for its compiled mode."""
    found = next((path for path in map(shutil.which, COMPILERS) if path), None)
    mend = "Install g++, or set enforce_eager = true in the [vllm] part of each recipe."
    return judge("compiler", found is not None, found or "no C++ compiler", mend)


def check_disk(settings: Settings) -> Finding:
    """Look at the free space where the work happens."""
    place = settings.scratch_dir
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    mend = f"At least {LEAST_DISK_BYTES // GIB} GiB are needed: free some, or set DRAFTWORKS_SCRATCH to another disk."
    return judge("disk", free >= LEAST_DISK_BYTES, f"{free / GIB:.1f} GiB free for {settings.scratch_dir}", mend)


def check_memory(settings: Settings) -> Finding:
    """Look at the memory that is available now."""
    import psutil

    free = int(psutil.virtual_memory().available)
    mend = f"At least {LEAST_MEMORY_BYTES // GIB} GiB are needed: stop other programs."
    return judge("memory", free >= LEAST_MEMORY_BYTES, f"{free / GIB:.1f} GiB available", mend)


def check_gpu(settings: Settings) -> Finding:
    """Look for GPUs; without one all runs on the CPU, unless the settings insist."""
    program = shutil.which("nvidia-smi")
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False).stdout if program else ""
    gpus = [line.split(" (UUID")[0] for line in listed.splitlines() if line.startswith("GPU ")]
    mend = "DRAFTWORKS_DEVICE is cuda: install the driver, or set it to auto or cpu."
    return judge("gpu", bool(gpus) or settings.device != "cuda", "; ".join(gpus) or "none, runs on the CPU", mend)


def check_target(settings: Settings) -> Finding:
    """Look at the small target of demo and tests."""
    folder = settings.targets_dir / NAME
    return judge("demo target", is_complete(folder), str(folder), "Run .venv/bin/python -m infra.target to make it.")


def check_store(settings: Settings) -> Finding:
    """Write an object and read it back; find out what the server honours."""
    if not settings.s3_endpoint and not os.environ.get("AWS_ACCESS_KEY_ID"):
        mend = "Run `draftworks up`, or set DRAFTWORKS_S3_ENDPOINT and the AWS credentials of your own bucket."
        return judge("s3", False, "no store is up, and none is set", mend)
    from tasks.store.location import StoreLocation
    from tasks.store.objects import connect

    where = StoreLocation(settings.s3_endpoint, settings.s3_bucket, settings.s3_prefix, settings.s3_region)
    store = connect(where)
    store.check_bucket()
    store.canary()
    is_safe = store.probe().if_match
    writes = "conditional writes honoured" if is_safe else "no If-Match: a single writer has to be guaranteed"
    return judge("s3", True, f"{where.uri()} at {where.server}, {writes}", "")


def check_prefect(settings: Settings) -> Finding:
    """Look whether the Prefect server answers and a worker waits."""
    running = read_running(settings.home_dir)
    if running is None:
        return judge("prefect", False, "no server is up", "Run `draftworks up`.")
    from infra.daemon import is_alive

    dead = [daemon.name for daemon in running.daemons() if not is_alive(daemon)]
    if running.api_url is None or running.worker is None or dead:
        seen = f"not running: {', '.join(dead) or 'the worker was never started'}"
        return judge("prefect", False, seen, "Run `draftworks up`: it starts what is missing.")
    from infra.health import is_prefect_healthy

    mend = f"Look into {settings.home_dir / 'logs'}, then `draftworks down` and `draftworks up`."
    return judge("prefect", is_prefect_healthy(running.api_url), f"{running.ui_url}, worker {running.worker.pid}", mend)


CHECKS: tuple[tuple[str, Callable[[Settings], Finding]], ...] = (
    ("python", check_python),
    ("pipeline packages", check_packages),
    ("vllm", check_vllm),
    ("compiler", check_compiler),
    ("disk", check_disk),
    ("memory", check_memory),
    ("gpu", check_gpu),
    ("demo target", check_target),
    ("s3", check_store),
    ("prefect", check_prefect),
)


def examine(settings: Settings) -> list[Finding]:
    """Return the findings of all checks; an error of ours is a failed check, its text says what to do."""
    findings = []
    for name, check in CHECKS:
        try:
            findings.append(check(settings))
        except DraftworksError as error:
            findings.append(Finding(name, "fail", "could not be checked", str(error)))
    return findings


def doctor(
    recipe: Annotated[
        Path | None, typer.Option("--explain", help="Say instead what this recipe would reuse, make, and why.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Check this machine, its environments and the services; say what to do about each fault."""
    os.environ.update(environment(load_settings().home_dir))
    if recipe is not None:
        from infra.explain import print_explanation

        print_explanation(recipe, as_json)
        return
    findings = examine(load_settings())
    print_findings(findings)
    is_fine = all(finding.outcome == "pass" for finding in findings)
    if as_json:
        outcome = "PASS" if is_fine else "FAIL"
        typer.echo(json.dumps({"outcome": outcome, "checks": [asdict(finding) for finding in findings]}))
    if not is_fine:
        raise typer.Exit(EXIT_FAILED)


def print_findings(findings: list[Finding]) -> None:
    """Print one row per check."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "outcome", "seen, and what to do")
    for finding in findings:
        colour = "green" if finding.outcome == "pass" else "red"
        text = escape(finding.seen) + (f"\n[bold]{escape(finding.mend)}[/bold]" if finding.mend else "")
        table.add_row(finding.name, f"[{colour}]{finding.outcome}[/{colour}]", text)
    Console().print(table)


def register(app: typer.Typer) -> None:
    """Add doctor to the command line."""
    app.command()(doctor)
