"""`draftworks check draft PATH`: the checks as a tool of their own; needs no recipe, no Prefect and no store.

    draftworks check draft ./my-draft --target ./my-target
    draftworks check draft s3://bucket/drafts/3 --level header --json
    draftworks check draft ./my-draft --fix ./mended --publish-as owner/target

Exit status: 0 PASS or WARN, 1 FAIL, 2 it could not be checked (one line on standard error says why). With --fix it
is the mended copy that decides.
"""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from tasks.checks.verdict import Verdict
from tasks.errors import EvidenceError, RecipeError

EXIT_FAIL = 1


class Kind(StrEnum):
    """What can be checked."""

    draft = "draft"


class Depth(StrEnum):
    """How much is read."""

    header = "header"
    small = "small"
    full = "full"
    engine = "engine"


def check(  # noqa: PLR0913 - one parameter per option of the command
    kind: Annotated[Kind, typer.Argument(help="What to check.")],
    path: Annotated[str, typer.Argument(help="Folder, run folder with numbered epochs, s3:// prefix, or hub id.")],
    target: Annotated[Path | None, typer.Option(help="Folder of the target model to compare with.")] = None,
    level: Annotated[
        Depth, typer.Option(help="header: kilobytes; small: maps, norms; full: all; engine: in vLLM.")
    ] = Depth.full,
    engine: Annotated[str, typer.Option(help="Engine version whose rules apply.")] = "vllm-0.32",
    manifest: Annotated[Path | None, typer.Option(help="JSON record of the training: layer_ids, ...")] = None,
    severity: Annotated[list[str] | None, typer.Option(help="Another severity of a rule: CFG008=warning.")] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a copy with the mechanical mends to this folder.")] = None,
    publish_as: Annotated[str | None, typer.Option(help="Model id that the copy names as its target.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Check a draft model, by its bytes, before a GPU is spent on it."""
    from tasks.checks.draft import check_draft
    from tasks.checks.mend import mend_draft
    from tasks.checks.report import print_verdict

    asked: dict[str, Any] = {
        "level": "full" if level is Depth.engine else level.value,
        "target": target,
        "engine": engine,
        "training_facts": read_training_record(manifest) if manifest else {},
        "severities": parse_severities(severity or []),
    }
    source = open_source(path)
    verdict = check_draft(source, **asked)
    if level is Depth.engine:
        verdict = in_engine(source, target, verdict)
    print_verdict(verdict, sys.stdout)
    answer = {"kind": kind.value, **verdict.model_dump(mode="json")}
    if fix is not None:
        mends = mend_draft(source, fix, engine=engine, publish_as=publish_as)
        verdict = check_draft(open_source(str(fix)), **asked)
        answer["mended"] = print_mends(fix, mends, verdict)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    if verdict.outcome == "FAIL":
        raise typer.Exit(EXIT_FAIL)


def print_mends(folder: Path, mends: list[str], verdict: Verdict) -> dict[str, Any]:
    """Say what was mended, and what the copy is worth; return the same as plain JSON."""
    from tasks.checks.report import summary

    typer.echo(f"Mended copy in {folder}:")
    for line in mends or ["nothing to mend; the copy holds the same config and weights"]:
        typer.echo(f"  {line}")
    typer.echo(f"Checked again: {summary(verdict)}")
    return {"path": str(folder), "mends": mends, "outcome": verdict.outcome}


def open_source(path: str) -> Any:
    """Return what reads the files at path. Raises EvidenceError if there is nothing to read."""
    from tasks.checks.hub import HubFolder, is_hub_id
    from tasks.checks.source import LocalFolder

    if path.startswith("s3://"):
        return _object_prefix(path)
    folder = Path(path).expanduser()
    if folder.is_file():
        raise EvidenceError(f"{path} is a file; give the folder that holds config.json and the safetensors files.")
    if not folder.exists() and is_hub_id(path):
        return HubFolder(path)
    return LocalFolder(folder)


def _object_prefix(uri: str) -> Any:
    from tasks.checks.source import ObjectPrefix
    from tasks.recipe.settings import load_settings
    from tasks.store.objects import StoreLocation, connect

    parts = urlsplit(uri)
    settings = load_settings()
    store = connect(StoreLocation(settings.s3_endpoint, parts.netloc, region=settings.s3_region))
    return ObjectPrefix(store, parts.path.strip("/"), label=uri.rstrip("/"))


def in_engine(source: Any, target: Path | None, verdict: Verdict) -> Verdict:
    """Return the verdict with what a vLLM server did with the draft; none is started for one that failed already.

    Raises RecipeError: no target, or a draft that is not on this machine.
    """
    from tasks.checks.live import Trial, check_live, with_engine
    from tasks.checks.source import LocalFolder
    from tasks.recipe.settings import device_of, load_settings
    from tasks.serving.command import Place

    if target is None or not isinstance(source, LocalFolder):
        raise RecipeError("--level engine needs --target FOLDER, and a draft in a folder of this machine.")
    if verdict.outcome == "FAIL":
        return with_engine(verdict, [])
    settings, facts = load_settings(), verdict.facts
    device = device_of(settings)
    folder = source.path / facts["epoch"] if "epoch" in facts else source.path
    metrics = folder / "val_metrics.json"
    trial = Trial(
        draft=folder,
        target=target,
        place=Place(settings.vllm_python, device, settings.gpu_ids),
        run_folder=settings.scratch_dir / "servers",
        log_path=settings.scratch_dir / "checks" / f"engine-{os.getpid()}.log",
        start_s=settings.server_start_s,
        vllm={"enforce_eager": True} if device == "cpu" else {},
        layer_ids=tuple(facts["layer_ids"]) if facts["layer_ids"] else None,
        metrics=json.loads(metrics.read_text()) if metrics.is_file() else {},
    )
    return with_engine(verdict, check_live(trial))


def read_training_record(path: Path) -> dict[str, Any]:
    """Return what a training recorded: a flat JSON object, or a manifest whose facts hold it.

    Raises EvidenceError: no such file, not a JSON object.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"cannot read the training record {path}: {error}. Give a JSON file.") from error
    if not isinstance(record, dict):
        raise EvidenceError(f"the training record {path} holds a {type(record).__name__}; expected a JSON object.")
    facts = record.get("facts")
    return facts if isinstance(facts, dict) else record


def parse_severities(pairs: list[str]) -> dict[str, str]:
    """Return rule to severity from RULE=severity texts. Raises RecipeError for another form."""
    split = [pair.split("=", 1) for pair in pairs]
    wrong = [pair for pair, parts in zip(pairs, split, strict=True) if len(parts) != 2]
    if wrong:
        raise RecipeError(f"--severity {wrong[0]}: expected RULE=error, RULE=warning or RULE=note.")
    return dict(split)


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command(name="check")(check)
