"""Guards the engine level against the real vLLM: a good draft answers; one that only loads dies when first asked."""

from pathlib import Path

import pytest

from tasks.checks.live import Trial, check_live
from tasks.checks.verdict import CheckResult
from tasks.recipe.settings import load_settings
from tasks.serving.command import Place

CASES = Path(__file__).resolve().parents[1] / "cases"
SMALL = {"enforce_eager": True, "max_model_len": 256}

pytestmark = pytest.mark.vllm


def live(case: str, folder: Path) -> dict[str, CheckResult]:
    trial = Trial(
        draft=CASES / case,
        target=CASES / "_target",
        place=Place(load_settings().vllm_python, "cpu"),
        run_folder=folder / "servers",
        log_path=folder / "engine.log",
        vllm=SMALL,
        prompts=["w10 w20 w30 w40", "w50 w60"],
        layer_ids=(2, 3, 4),
    )
    return {result.rule: result for result in check_live(trial)}


def test_good_draft_answers_with_the_layers_of_its_config(tmp_path: Path) -> None:
    results = live("00-good", tmp_path)

    assert results["RUN001"].outcome == "pass", results["RUN001"].message
    assert results["RUN004"].outcome == "pass", results["RUN004"].message
    # Its weights are random numbers, so that whether a token is accepted is chance; that it was counted is not.
    assert "steps" in results["RUN002"].message or results["RUN002"].outcome == "fail"


def test_absolute_ids_load_and_kill_the_engine_on_the_first_request(tmp_path: Path) -> None:
    results = live("22-d2t-absolute", tmp_path)

    assert results["RUN001"].outcome == "fail"
    assert "RUN002" not in results
