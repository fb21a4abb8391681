"""The verdict on a draft: one result per rule and what they add up to.

A result that failed counts by its severity: an error makes the verdict FAIL, a warning makes it WARN, a note only
informs. One result as JSON:

    {"rule": "AUX003", "severity": "error", "outcome": "fail", "message": "fc.weight takes 4 hidden states ...",
     "observed": "256 columns", "expected": "192", "mend": "add num_aux_hidden_states: 4 to ...", "read": "config.json"}
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["error", "warning", "note"]
Outcome = Literal["pass", "fail", "skipped"]
Level = Literal["header", "small", "full"]

LEVELS: tuple[Level, ...] = ("header", "small", "full")


class CheckResult(BaseModel):
    """What one rule found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    severity: Severity
    outcome: Outcome
    message: str
    observed: str = ""
    expected: str = ""
    mend: str = ""
    read: str = ""


class Verdict(BaseModel):
    """What all rules of one level say about one draft."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: str
    outcome: Literal["PASS", "WARN", "FAIL"]
    results: tuple[CheckResult, ...]
    not_checked: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def faults(self) -> tuple[CheckResult, ...]:
        """Return the results that failed, errors first."""
        order: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
        failed = (result for result in self.results if result.outcome == "fail")
        return tuple(sorted(failed, key=lambda result: order[result.severity]))


def conclude(
    level: str, results: Iterable[CheckResult], not_checked: Iterable[str], facts: Mapping[str, Any]
) -> Verdict:
    """Return the verdict: FAIL if an error failed, else WARN if a warning failed, else PASS."""
    kept = tuple(results)
    failed = {result.severity for result in kept if result.outcome == "fail"}
    outcome: Literal["PASS", "WARN", "FAIL"] = "PASS"
    if "error" in failed:
        outcome = "FAIL"
    elif "warning" in failed:
        outcome = "WARN"
    return Verdict(level=level, outcome=outcome, results=kept, not_checked=tuple(not_checked), facts=dict(facts))
