"""Guards the gate: what moves the champion, what does not, and that it says why."""

import pytest

from tasks.bench.measurement import Acceptance, Arm, Measurement
from tasks.checks.gate import decide
from tasks.checks.verdict import CheckResult, Verdict
from tasks.errors import EvidenceError


def verdict(outcome: str) -> Verdict:
    failed = CheckResult(rule="TEN001", severity="error", outcome="fail", message="fc.weight is missing")
    results = (failed,) if outcome == "FAIL" else ()
    return Verdict.model_validate(
        {"level": "full", "outcome": outcome, "results": results, "not_checked": (), "facts": {}}
    )


def arm(name: str, accepted: int) -> Arm:
    rate = accepted / 100
    acceptance = Acceptance(
        dataset="service",
        num_prompts=5,
        num_steps=100,
        num_accepted=accepted,
        acceptance_length=1 + rate,
        per_position=(rate,),
    )
    return Arm.model_validate({"name": name, "fingerprint": "f" * 64, "acceptance": (acceptance,), "speeds": ()})


def measured(*arms: Arm) -> Measurement:
    return Measurement(draft_tokens=1, temperature=0, max_tokens=8, arms=arms, engine={}, prompt_sets={})


@pytest.mark.parametrize(
    ("challenger", "champion", "promote", "words"),
    [
        (60, 50, True, "moved: acceptance length 1.600 against 1.500"),
        (50, 50, False, "stays: acceptance length 1.500 against 1.500"),
        (40, 50, False, "stays"),
    ],
)
def test_only_a_better_draft_replaces_the_champion(challenger: int, champion: int, promote: bool, words: str) -> None:
    decision = decide(verdict("PASS"), measured(arm("draft", challenger), arm("champion", champion)))
    assert (decision.promote, words in decision.reason) == (promote, True)


def test_the_first_champion_needs_accepted_tokens() -> None:
    assert decide(verdict("WARN"), measured(arm("draft", 10))).promote
    assert not decide(verdict("PASS"), measured(arm("draft", 0))).promote


def test_a_draft_that_failed_its_checks_never_moves_it() -> None:
    decision = decide(verdict("FAIL"), None)
    assert not decision.promote
    assert "failed 1 checks" in decision.reason


def test_a_draft_without_a_measurement_is_no_decision() -> None:
    with pytest.raises(EvidenceError, match="measure it"):
        decide(verdict("PASS"), None)
