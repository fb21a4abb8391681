"""Stage verify: the rules over the draft, from header bytes to every weight. A failing draft is a result, not an error.

Leaves verdict.json, and the vLLM server's log at level engine.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact

from tasks.checks.draft import check_draft
from tasks.checks.live import Trial, check_live, with_engine
from tasks.checks.source import LocalFolder
from tasks.checks.verdict import CheckResult, Verdict
from tasks.drafting.publish import SERVED_FILES
from tasks.job import Job, found_or_made
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import device_of
from tasks.serving.command import Place
from tasks.stage import Done, stage

VERDICT_NAME = "verdict.json"
SERVER_LOG = "vllm.log"


def _log(job: Job, verdict: Verdict) -> None:
    for result in verdict.results:
        if result.outcome == "fail":
            job.logger.warning("%s (%s): %s %s", result.rule, result.severity, result.message, result.mend)
    job.logger.info("verdict: %s at level %s", verdict.outcome, verdict.level)


def _training_facts(job: Job) -> dict[str, Any]:
    """Return what the training recorded, for the rules that compare it with what is stored and served."""
    facts: dict[str, Any] = {
        "layer_ids": list(job.plan.inputs.layer_ids),
        "target_identity": job.plan.inputs.target_identity,
        "serving_target_identity": job.target().identity,
    }
    longest = job.recipe.vllm.get("max_model_len")
    return {**facts, "max_model_len": longest} if isinstance(longest, int) else facts


def _in_engine(job: Job, folder: Path) -> list[CheckResult]:
    """Return what the engine does with the draft, under the flags that it is deployed with."""
    settings, epochs = job.settings, json.loads(job.artifacts.read_bytes(job.input("draft"), "epochs.json"))
    chosen = next(epoch for epoch in epochs["epochs"] if epoch["epoch"] == epochs["chosen"])
    trial = Trial(
        draft=folder,
        target=job.target().folder,
        place=Place(settings.vllm_python, device_of(settings), settings.gpu_ids),
        run_folder=settings.scratch_dir / "servers",
        log_path=job.scratch / SERVER_LOG,
        draft_tokens=job.recipe.benchmark.draft_tokens,
        start_s=settings.server_start_s,
        vllm=job.recipe.vllm,
        layer_ids=job.plan.inputs.layer_ids,
        metrics=chosen,
    )
    return check_live(trial)


def _show(job: Job, verdict: Verdict) -> None:
    """Show the verdict as a table, worst first."""
    order = {"fail": 0, "skipped": 1, "pass": 2}
    severities = {"error": 0, "warning": 1, "note": 2}
    rows = sorted(verdict.results, key=lambda row: (order[row.outcome], severities[row.severity], row.rule))
    create_table_artifact(
        [row.model_dump(mode="json", exclude={"read"}) for row in rows],
        key="verdict",
        description=f"{verdict.outcome} at level {verdict.level}; not checked: {len(verdict.not_checked)} rules",
    )


def _make(job: Job) -> Done:
    recipe = job.recipe
    folder = job.fetch("draft", SERVED_FILES)
    level = recipe.verification.level
    verdict = check_draft(
        LocalFolder(folder),
        level="full" if level == "engine" else level,
        target=job.target().folder,
        training_facts=_training_facts(job),
        severities=recipe.verification.severities,
    )
    if level == "engine":
        verdict = with_engine(verdict, _in_engine(job, folder) if verdict.outcome != "FAIL" else [])
    _log(job, verdict)
    _show(job, verdict)
    outcomes = Counter(result.outcome for result in verdict.results)
    facts = {
        "outcome": verdict.outcome,
        "level": verdict.level,
        "rules_passed": outcomes["pass"],
        "rules_failed": outcomes["fail"],
        "trust_remote_code": recipe.target.trust_remote_code,
        **verdict.facts,
    }
    return job.finish([job.put_json(VERDICT_NAME, verdict), *job.stored_log(SERVER_LOG)], facts)


@stage("verify")
def verify(recipe: Recipe, plan: Plan) -> Done:
    """Check the draft of this plan, or find its verdict in the store."""
    return found_or_made("verdict", recipe, plan, _make)
