"""The pages of the UI as Markdown: one per stage, and the summary of a run. Pure text: no Prefect."""

from collections.abc import Iterator

from tasks.checks.verdict import CheckResult, Verdict
from tasks.pages.parts import (
    NOT_AVAILABLE,
    StoredObject,
    escaped,
    fact_label,
    fact_text,
    human_bytes,
    human_number,
    human_percent,
    human_seconds,
    markdown_table,
    objects_table,
    page,
    short,
)
from tasks.pages.report import RunReport, StageReport, conclusion, draft_arm, outcome_sentence, speed_ups, summary_rows
from tasks.store.manifest import Account, Cost

_MOST_OBJECTS_OF_STAGE = 100
_MOST_OBJECTS_OF_RUN = 40
_MOST_REASONS = 10
_MOST_FINDINGS = 25
_STAGE_HEADER = ("stage", "what happened", "in", "kept", "failed", "skipped", "time", "GPU time", "tokens", "written")


def stage_page(stage: StageReport, browser_url: str | None = None) -> str:
    """Return the page of one stage: what came in and out, why things were left out, facts, pictures, objects."""
    lead = (
        f"**Reused**, nothing was computed: {escaped(stage.reused_because)}. When made, it took"
        if stage.reused_because is not None
        else "Made in"
    )
    lead += f" {human_seconds(stage.cost.seconds)}, {human_bytes(stage.cost.bytes_written)} written."
    if stage.not_needed is not None:
        lead = f"Nothing was computed: {escaped(stage.not_needed)}."
    head = [f"# {escaped(stage.name)}", lead, _account_table(stage.account)]
    facts = [(escaped(fact_label(key)), escaped(fact_text(key, value))) for key, value in stage.facts.items()]
    tail = [
        "## Facts\n\n" + markdown_table(("fact", "value"), facts) if facts else "",
        _objects(stage.objects, browser_url, _MOST_OBJECTS_OF_STAGE),
    ]
    head = [part for part in head if part]
    return page([*head, *tail], stage.plots, plots_after=len(head))


def run_page(report: RunReport, browser_url: str | None = None) -> str:
    """Return the summary page of a run; its first paragraph is the conclusion in one sentence."""
    head = [
        f"# {escaped(report.name)}",
        f"**{escaped(conclusion(report))}**",
        escaped(outcome_sentence(report)) if report.decision and report.measurement else "",
        markdown_table(
            ("", ""), [(escaped(label), escaped(text)) for label, text in summary_rows(report)], right_from=2
        ),
    ]
    tail = [
        _speed_table(report),
        _acceptance_table(report),
        "## Stages\n\n" + markdown_table(_STAGE_HEADER, _stage_rows(report), right_from=2),
        _reuse_list(report),
        _findings(report.verdict),
        _objects(tuple(o for stage in report.stages for o in stage.objects), browser_url, _MOST_OBJECTS_OF_RUN),
        _provenance(report),
    ]
    head = [part for part in head if part]
    return page([*head, *tail], report.plots, plots_after=len(head))


def _account_table(account: Account | None) -> str:
    if account is None:
        return ""
    counts = (account.num_input, account.num_kept, account.num_failed, account.num_skipped)
    text = markdown_table(("came in", "kept", "failed", "skipped"), [[human_number(c) for c in counts]], right_from=0)
    reasons = sorted(account.reasons.items(), key=lambda item: (-item[1], item[0]))
    if not reasons:
        return text
    rows = [(escaped(short(reason)), human_number(count)) for reason, count in reasons[:_MOST_REASONS]]
    if reasons[_MOST_REASONS:]:
        rows.append(("other reasons", human_number(sum(count for _, count in reasons[_MOST_REASONS:]))))
    return f"{text}\n\n{markdown_table(('reason of what was left out', 'count'), rows)}"


def _stage_rows(report: RunReport) -> Iterator[tuple[str, ...]]:
    made = [stage.cost for stage in report.stages if not stage.reused]
    for stage in report.stages:
        a = stage.account
        counts = (a.num_input, a.num_kept, a.num_failed, a.num_skipped) if a else (None,) * 4
        done = "not needed" if stage.not_needed else "reused" if stage.reused else "made"
        yield (escaped(stage.name), done, *("" if c is None else human_number(c) for c in counts), *_cost(stage.cost))
    total = Cost(
        seconds=sum(cost.seconds for cost in made),
        gpu_seconds=sum(cost.gpu_seconds for cost in made),
        tokens=sum(cost.tokens for cost in made),
        bytes_written=sum(cost.bytes_written for cost in made),
    )
    yield ("**all that was made**", "", "", "", "", "", *_cost(total))


def _cost(cost: Cost) -> tuple[str, ...]:
    gpu = human_seconds(cost.gpu_seconds) if cost.gpu_seconds else ""
    return human_seconds(cost.seconds), gpu, human_number(cost.tokens), human_bytes(cost.bytes_written)


def _reuse_list(report: RunReport) -> str:
    why = [(stage.name, stage.reused_because or stage.not_needed) for stage in report.stages]
    reused = [f"- **{escaped(name)}**: {escaped(reason)}" for name, reason in why if reason]
    times = "The times of reused stages are from when they were made."
    return "\n".join(["## Reused", "", times, "", *reused]) if reused else ""


def _speed_table(report: RunReport) -> str:
    ratios = speed_ups(report)
    if report.measurement is None or not ratios:
        return ""
    rows = []
    for ratio in ratios:
        arms = [report.measurement.arm("baseline"), draft_arm(report)]
        blocks = [[s for s in arm.speeds if s.concurrency == ratio.concurrency] for arm in arms if arm]
        speeds = [sum(s.completion_tokens for s in block) / sum(s.wall_s for s in block) for block in blocks]
        rows.append(
            (
                str(ratio.concurrency),
                *(human_number(speed, 1) for speed in speeds),
                f"**{ratio.median:.2f}x**",
                ", ".join(f"{one:.2f}x" for one in ratio.per_repeat),
            )
        )
    header = ("requests in flight", "target alone [tok/s]", "with draft [tok/s]", "speed-up (median)", "each repeat")
    return "## Speed\n\n" + markdown_table(header, rows, right_from=0)


def _acceptance_table(report: RunReport) -> str:
    measurement = report.measurement
    arms = [arm for arm in measurement.arms if arm.acceptance] if measurement else []
    if measurement is None or not arms:
        return ""
    header = ["prompts", "served by", "count", "verify steps", "acceptance length"]
    header += [f"position {position}" for position in range(1, measurement.draft_tokens + 1)]
    rows = []
    for arm in arms:
        for found in arm.acceptance:
            rates = [human_percent(rate) for rate in found.per_position]
            rates += [NOT_AVAILABLE] * (measurement.draft_tokens - len(rates))
            counts = (human_number(found.num_prompts), human_number(found.num_steps))
            length = f"**{found.acceptance_length:.2f}**"
            rows.append([escaped(found.dataset), arm.name, *counts, length, *rates])
    note = f"Formula: {measurement.formula}; its ceiling here is {measurement.draft_tokens + 1}. "
    note += "Positions: share of all verify steps that accepted this draft token."
    return f"## Acceptance\n\n{markdown_table(header, rows, right_from=2)}\n\n{note}"


def _findings(verdict: Verdict | None) -> str:
    if verdict is None or not (verdict.faults or verdict.not_checked):
        return ""
    rows = [_finding(result) for result in verdict.faults[:_MOST_FINDINGS]]
    header = ("rule", "severity", "what was seen", "what to do")
    parts = [
        "## Checks that did not pass" if rows else "## Checks",
        markdown_table(header, rows, right_from=4) if rows else "",
        f"and {len(verdict.faults) - len(rows)} more" if verdict.faults[_MOST_FINDINGS:] else "",
        f"Not checked: {escaped(short('; '.join(verdict.not_checked)))}." if verdict.not_checked else "",
    ]
    return "\n\n".join(filter(None, parts))


def _finding(result: CheckResult) -> tuple[str, ...]:
    return result.rule, result.severity, escaped(short(result.message)), escaped(short(result.mend))


def _objects(objects: tuple[StoredObject, ...], browser_url: str | None, most: int) -> str:
    return f"## Objects\n\n{objects_table(objects, browser_url, most=most)}" if objects else ""


def _provenance(report: RunReport) -> str:
    facts = dict(report.provenance)
    if report.measurement:
        facts |= {f"engine {key}": value for key, value in report.measurement.engine.items()}
    rows = [(escaped(key), escaped(short(value))) for key, value in facts.items()]
    return "## Made with\n\n" + markdown_table(("", ""), rows, right_from=2) if rows else ""
