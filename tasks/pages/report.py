"""What a run and its stages did, as small frozen records, and what is said about them in words and numbers.

The same figures feed the page of the UI, the table of the terminal and the JSON line of a command.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from tasks.bench.compare import SpeedRatio, speed_ratios
from tasks.bench.measurement import GENERAL, SERVICE, Arm, Measurement
from tasks.checks.verdict import Verdict
from tasks.pages.parts import NOT_AVAILABLE, Plot, StoredObject, Value, human_number, human_seconds, short
from tasks.store.manifest import Account, Cost


@dataclass(frozen=True)
class StageReport:
    """What one stage did. The cost of a reused stage is what it cost when it was made.

    not_needed: why its artifact is neither there nor was made.
    """

    name: str
    cost: Cost
    account: Account | None = None
    reused_because: str | None = None
    facts: Mapping[str, Value] = field(default_factory=dict)
    objects: tuple[StoredObject, ...] = ()
    plots: tuple[Plot, ...] = ()
    not_needed: str | None = None

    @property
    def reused(self) -> bool:
        """Return whether the stage had nothing to make."""
        return self.reused_because is not None or self.not_needed is not None


@dataclass(frozen=True)
class RunReport:
    """What one run did. decision: the sentence of a gate or a schedule, which is then the conclusion."""

    name: str
    target: str
    stages: tuple[StageReport, ...]
    draft: str | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    plots: tuple[Plot, ...] = ()
    decision: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)


def conclusion(report: RunReport) -> str:
    """Return in one sentence what the run came to: the decision, if there is one, else the outcome."""
    return report.decision or outcome_sentence(report)


def summary_numbers(report: RunReport) -> dict[str, Any]:
    """Return the run's figures as plain JSON values; None where something was not measured."""
    draft = draft_arm(report)
    service, general = (draft.acceptance_on(name) if draft else None for name in (SERVICE, GENERAL))
    return {
        "verdict": report.verdict.outcome if report.verdict else None,
        "acceptance_length": round(service.acceptance_length, 4) if service else None,
        "acceptance_length_general": round(general.acceptance_length, 4) if general else None,
        "speedup": {str(ratio.concurrency): round(ratio.median, 4) for ratio in speed_ups(report)},
    }


def summary_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return the lines of the summary as (label, text), the same for the page and the terminal."""
    numbers = summary_numbers(report)
    verdict = report.verdict
    made = [stage for stage in report.stages if not stage.reused]
    rows = [("target", report.target), ("draft", _short_name(report.draft))]
    rows.append(("verdict", f"{verdict.outcome} (level {verdict.level})" if verdict else "not verified"))
    rows.append(("acceptance length, service prompts", human_number(numbers["acceptance_length"], 2)))
    rows.append(("acceptance length, general prompts", human_number(numbers["acceptance_length_general"], 2)))
    rows += [(f"speed-up at concurrency {ratio.concurrency}", f"{ratio.median:.2f}x") for ratio in speed_ups(report)]
    rows.append(("stages made / reused", f"{len(made)} / {len(report.stages) - len(made)}"))
    rows.append(("time in stages", human_seconds(sum(stage.cost.seconds for stage in made))))
    return rows


def _short_name(uri: str | None) -> str:
    """Return kind and the start of the fingerprint; the whole URI is in the table of objects."""
    if uri is None:
        return NOT_AVAILABLE
    kind, _, fingerprint = uri.rstrip("/").rpartition("/")
    return f"{kind.rpartition('/')[2]}/{fingerprint[:12]}"


def terminal_summary(name: str, rows: Iterable[tuple[str, str]], sentence: str) -> Table:
    """Return a run's summary for rich's console, from its summary_rows and its conclusion."""
    table = Table(
        title=escape(name), caption=escape(sentence), show_header=False, title_justify="left", caption_justify="left"
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    for label, text in rows:
        table.add_row(escape(label), escape(text))
    return table


def outcome_sentence(report: RunReport) -> str:
    """Return in one sentence what the draft is worth, with its numbers."""
    verdict, numbers = report.verdict, summary_numbers(report)
    if verdict is not None and verdict.outcome == "FAIL":
        faults = [fault for fault in verdict.faults if fault.severity == "error"]
        first = f"; first {faults[0].rule}: {short(faults[0].message)}" if faults else ""
        return f"The draft must not serve: {len(faults)} checks found an error{first}."
    if numbers["acceptance_length"] is None:
        return "No draft was measured in this run."
    checked = {None: "was not verified", "PASS": "passed its checks", "WARN": "passed its checks with warnings"}
    general = numbers["acceptance_length_general"]
    return (
        f"The draft {checked[numbers['verdict']]}, reaches an acceptance length of {numbers['acceptance_length']:.2f} "
        f"on the service's prompts{f' ({general:.2f} on general ones)' if general else ''}{_speed_clause(report)}."
    )


def _speed_clause(report: RunReport) -> str:
    first, *others = speed_ups(report) or (None,)
    if first is None:
        return ""
    rest = "".join(f", {ratio.median:.2f}x at {ratio.concurrency}" for ratio in others)
    return f" and serves {first.median:.2f}x the tokens/s of the target alone at concurrency {first.concurrency}{rest}"


def draft_arm(report: RunReport) -> Arm | None:
    """Return the figures of the run's draft, if it was measured."""
    return report.measurement.arm("draft") if report.measurement else None


def speed_ups(report: RunReport) -> tuple[SpeedRatio, ...]:
    """Return the draft's speed-up over the target alone, per concurrency; empty when not measured."""
    baseline = report.measurement.arm("baseline") if report.measurement else None
    draft = draft_arm(report)
    return speed_ratios(draft.speeds, baseline.speeds) if draft and baseline and draft.speeds else ()
