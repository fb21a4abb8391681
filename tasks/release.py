"""Stage release: the gate's decision, the champion pointer, and the history.

Leaves release.json; moves champions/<target>.json in the store, the only object that ever changes.
"""

from datetime import UTC, datetime

from prefect.logging import get_run_logger

from tasks.bench.measurement import parse_measurement
from tasks.benchmark import MEASUREMENT_NAME
from tasks.checks.gate import Decision, decide
from tasks.checks.verdict import Verdict
from tasks.job import Job, found_or_made
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import load_settings
from tasks.recipe.target import champion_name
from tasks.stage import Done, open_artifacts, stage
from tasks.store.artifact import ArtifactRef
from tasks.store.pointers import Pointer, Pointers
from tasks.verify import VERDICT_NAME

RELEASE_NAME = "release.json"


def _pointer_name(plan: Plan) -> str:
    return champion_name(plan.inputs.published_name, plan.inputs.target_identity)


def _decide(job: Job) -> Decision:
    verdict = Verdict.model_validate_json(job.artifacts.read_bytes(job.input("verdict"), VERDICT_NAME))
    measured = job.artifacts.find(job.input("measurement"))
    if measured is None:
        return decide(verdict, None)
    text = job.artifacts.read_bytes(job.input("measurement"), MEASUREMENT_NAME)
    return decide(verdict, parse_measurement(text, str(job.input("measurement"))))


def _promote(job: Job, plan: Plan, decision: Decision) -> None:
    """Point the champion at the new draft; the one before goes into the history."""
    pointers, name = Pointers(job.artifacts.store), _pointer_name(plan)
    found = pointers.read(name)
    before, etag = found if found else (None, None)
    challenger = job.input("draft")
    if before is not None and before.current == challenger:
        return
    entry = {
        "draft": challenger.fingerprint,
        "replaced": before.current.fingerprint if before and before.current else None,
        "measurement": job.input("measurement").fingerprint,
        "reason": decision.reason,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    moved = Pointer(
        current=challenger,
        history=(*(before.history if before else ()), entry),
        updated=entry["at"] or "",
        reason=decision.reason,
    )
    pointers.move(name, moved, etag, single_writer=job.recipe.release.single_writer)


def _make(job: Job) -> Done:
    plan = job.plan
    decision = _decide(job)
    if decision.promote:
        _promote(job, plan, decision)
    job.logger.info("%s", decision.reason)
    facts = {"promoted": decision.promote, "reason": decision.reason, "champion": _pointer_name(plan)}
    record = job.put_json(RELEASE_NAME, {**facts, "draft": job.input("draft").fingerprint})
    return job.finish([record], facts)


@stage("release")
def release(recipe: Recipe, plan: Plan) -> Done:
    """Decide about the draft of this plan, move the champion if it is beaten, and record why."""
    return found_or_made("release", recipe, plan, _make)


def unchanged_because(plan: Plan) -> str | None:
    """Return why this plan leads to nothing new, or None when it does."""
    artifacts = open_artifacts(load_settings())
    draft = plan.fingerprint("draft")
    if plan.inputs.champion == draft:
        return f"Skipped: prompts, recipe and target are those of the champion (draft {draft[:12]}), so nothing is new."
    earlier = artifacts.find(ArtifactRef(kind="release", fingerprint=plan.fingerprint("release")))
    if earlier is None:
        return None
    return (
        f"Skipped: this challenger (draft {draft[:12]}) was already judged against this champion at "
        f"{earlier.created}. {earlier.facts['reason']}"
    )


@stage("standing")
def standing(recipe: Recipe, plan: Plan) -> str | None:
    """Return the sentence that says why there is nothing to do, or None when there is."""
    reason = unchanged_because(plan)
    get_run_logger().info("%s", reason or f"new inputs for {recipe.name}: a challenger will be made")
    return reason
