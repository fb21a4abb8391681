"""Guards `draftworks doctor`: exit status, one JSON object at the end, and a mend beside every fault."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from infra import doctor
from tasks.recipe.settings import Settings


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    return app


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWORKS_HOME", str(tmp_path))
    for name in ("DRAFTWORKS_S3_ENDPOINT", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)


def test_faults_have_a_mend_and_exit_status_one(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == doctor.EXIT_FAILED
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["outcome"] == "FAIL"
    assert [check["name"] for check in report["checks"]] == [name for name, _ in doctor.CHECKS]
    failed = {check["name"]: check["mend"] for check in report["checks"] if check["outcome"] == "fail"}
    assert {"s3", "prefect", "demo target"} <= set(failed)
    assert all(failed.values())


def test_an_interpreter_without_vllm_is_a_finding(tmp_path: Path) -> None:
    settings = Settings(vllm_python=tmp_path / "python")
    found = {finding.name: finding for finding in doctor.examine(settings)}
    assert found["vllm"].outcome == "fail" and "DRAFTWORKS_VLLM_PYTHON" in found["vllm"].mend


def test_a_fault_keeps_its_mend_and_a_pass_has_none() -> None:
    assert doctor.judge("disk", False, "1 GiB free", "Free some.") == doctor.Finding(
        "disk", "fail", "1 GiB free", "Free some."
    )
    assert doctor.judge("disk", True, "9 GiB free", "Free some.").mend == ""


def test_a_store_that_refuses_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    settings = Settings(s3_endpoint="http://127.0.0.1:9")
    found = {finding.name: finding for finding in doctor.examine(settings)}
    assert found["s3"].outcome == "fail" and "127.0.0.1:9" in found["s3"].mend
