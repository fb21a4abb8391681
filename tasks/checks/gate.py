"""The gate: may the new draft take the champion's place? A pure decision over a verdict and a measurement."""

from dataclasses import dataclass

from tasks.bench.measurement import SERVICE, Measurement
from tasks.checks.verdict import Verdict
from tasks.errors import EvidenceError


@dataclass(frozen=True)
class Decision:
    """Whether the champion moves, and why, in one sentence."""

    promote: bool
    reason: str


def _length(measurement: Measurement, arm: str) -> float | None:
    found = next((one for one in measurement.arms if one.name == arm), None)
    acceptance = found.acceptance_on(SERVICE) if found else None
    return acceptance.acceptance_length if acceptance else None


def decide(verdict: Verdict, measurement: Measurement | None) -> Decision:
    """Return whether the challenger is promoted.

    It must pass its checks; it must beat the champion's acceptance length on the service's prompts, measured in
    the same run; without a champion it must have drafts accepted at all.
    Raises EvidenceError: a draft that passed its checks was not measured.
    """
    if verdict.outcome == "FAIL":
        failed = sum(1 for result in verdict.results if result.outcome == "fail" and result.severity == "error")
        return Decision(False, f"The champion stays: the new draft failed {failed} checks.")
    challenger = _length(measurement, "draft") if measurement else None
    if measurement is None or challenger is None:
        raise EvidenceError("the draft passed its checks but has no acceptance on the service's prompts; measure it")
    champion = _length(measurement, "champion")
    if champion is None:
        if challenger > 1.0:
            return Decision(True, f"The new draft is the first champion: acceptance length {challenger:.3f}.")
        return Decision(False, "There is still no champion: not one token of the new draft was accepted.")
    if challenger > champion:
        return Decision(
            True, f"The champion moved: acceptance length {challenger:.3f} against {champion:.3f} of the one before."
        )
    return Decision(
        False, f"The champion stays: acceptance length {champion:.3f} against {challenger:.3f} of the new draft."
    )
