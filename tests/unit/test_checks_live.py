"""Guards what is concluded from a running engine: predicted against served acceptance, and the layers in its log."""

from pathlib import Path

import pytest

from tasks.checks.draft import check_draft
from tasks.checks.live import Trial, check_live, predicted_length, with_engine
from tasks.checks.source import LocalFolder
from tasks.checks.verdict import CheckResult
from tasks.errors import DraftworksError
from tasks.serving.command import Place
from tests.cases.tiny import TinyDraft


def test_prediction_adds_up_the_served_positions_only() -> None:
    metrics = {"full_acc_0_epoch": 0.4, "full_acc_1_epoch": 0.15, "full_acc_2_epoch": 0.05, "loss_epoch": 2.0}

    assert predicted_length(metrics, 2) == pytest.approx(1.55)
    assert predicted_length(metrics, 8) == pytest.approx(1.6)
    assert predicted_length({"loss_epoch": 2.0}, 3) is None


def test_no_engine_result_is_named_as_not_checked(tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(TinyDraft().write(tmp_path / "draft")))

    left = with_engine(verdict, [])
    passed = CheckResult(rule="RUN001", severity="error", outcome="pass", message="answers")
    failed = CheckResult(rule="RUN002", severity="error", outcome="fail", message="nothing accepted")

    assert any("no engine was started" in line for line in left.not_checked)
    assert (left.level, left.outcome) == ("engine", "PASS")
    assert with_engine(verdict, [passed, failed]).outcome == "FAIL"


def test_a_missing_engine_says_nothing_of_the_draft(tmp_path: Path) -> None:
    place = Place(tmp_path / "no-python")
    trial = Trial(tmp_path, tmp_path, place, run_folder=tmp_path / "run", log_path=tmp_path / "engine.log")

    with pytest.raises(DraftworksError, match="no-python"):
        check_live(trial)
