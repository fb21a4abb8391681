"""Stage summary: one page with the numbers, the cost, the plots and the links of a whole run."""

import json
from collections.abc import Mapping, Sequence

from prefect import runtime
from prefect.artifacts import create_markdown_artifact
from prefect.settings import PREFECT_UI_URL
from pydantic import BaseModel, ConfigDict

from tasks.bench.measurement import Measurement, parse_measurement
from tasks.bench.plots import acceptance_per_position, training_curves
from tasks.benchmark import MEASUREMENT_NAME
from tasks.checks.verdict import Verdict
from tasks.drafting.command import METRICS_NAME
from tasks.job import not_needed_report, stage_report
from tasks.pages.pages import run_page
from tasks.pages.parts import Plot
from tasks.pages.report import RunReport, conclusion, summary_numbers, summary_rows
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import load_settings
from tasks.stage import Done, open_artifacts, stage
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.verify import VERDICT_NAME


class RunSummary(BaseModel):
    """What a run came to, as the command line prints it."""

    model_config = ConfigDict(frozen=True)

    run: str
    draft: str | None
    verdict: str | None
    acceptance_length: float | None
    acceptance_length_general: float | None
    speedup: dict[str, float]
    report: str
    conclusion: str
    rows: tuple[tuple[str, str], ...]


def run_url() -> str:
    """Return the address of this run's page."""
    base = (PREFECT_UI_URL.value() or "").rstrip("/")
    return f"{base}/runs/flow-run/{runtime.flow_run.id}"


def _verdict(artifacts: Artifacts, done: Mapping[str, Done]) -> Verdict | None:
    if "verdict" not in done:
        return None
    return Verdict.model_validate_json(artifacts.read_bytes(done["verdict"].ref, VERDICT_NAME))


def _measurement(artifacts: Artifacts, done: Mapping[str, Done]) -> Measurement | None:
    if "measurement" not in done:
        return None
    ref = done["measurement"].ref
    return parse_measurement(artifacts.read_bytes(ref, MEASUREMENT_NAME), str(ref))


def _plots(artifacts: Artifacts, draft: ArtifactRef | None, measurement: Measurement | None) -> tuple[Plot, ...]:
    plots = []
    if draft is not None:
        lines = artifacts.read_bytes(draft, METRICS_NAME).decode("utf-8").splitlines()
        plots.append(Plot("Training curves", training_curves([json.loads(line) for line in lines])))
    if measurement is not None:
        plots.append(Plot("Acceptance per draft position", acceptance_per_position(measurement.arms)))
    return tuple(plots)


def run_report(recipe: Recipe, stages: Sequence[Done], decision: str | None, artifacts: Artifacts) -> RunReport:
    """Return the report of a run from the artifacts that its stages made or found."""
    done = {stage.ref.kind: stage for stage in stages}
    manifests = {kind: artifacts.manifest(stage.ref) for kind, stage in done.items() if stage.not_needed is None}
    draft = done["draft"].ref if "draft" in done else None
    served = done["package"].ref if "package" in done else draft
    measurement = _measurement(artifacts, done)
    newest = list(manifests.values())[-1].provenance if manifests else None
    return RunReport(
        name=recipe.name,
        target=recipe.target.publish_as or recipe.target.model,
        stages=tuple(
            not_needed_report(kind, stage.not_needed)
            if stage.not_needed
            else stage_report(manifests[kind], artifacts, reused=stage.reused)
            for kind, stage in done.items()
        ),
        draft=artifacts.store.uri(served.prefix) if served else None,
        verdict=_verdict(artifacts, done),
        measurement=measurement,
        plots=_plots(artifacts, draft, measurement),
        decision=decision,
        provenance={"commit": newest.git_commit or "unknown", **newest.packages} if newest else {},
    )


@stage("summary")
def summary(recipe: Recipe, plan: Plan, stages: list[Done], decision: str | None = None) -> RunSummary:
    """Make the summary page of this run; decision is the sentence of the release, where there was one."""
    settings = load_settings()
    report = run_report(recipe, stages, decision, open_artifacts(settings))
    create_markdown_artifact(
        run_page(report, settings.s3_browser_url), key="run-summary", description=conclusion(report)
    )
    return RunSummary(
        run=str(runtime.flow_run.name),
        draft=report.draft,
        report=run_url(),
        conclusion=conclusion(report),
        rows=tuple(summary_rows(report)),
        **summary_numbers(report),
    )
