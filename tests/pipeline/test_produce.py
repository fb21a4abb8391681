"""Guards the main job: six stages on the real vLLM, speculators, S3 and Prefect, from a recipe to a draft."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.recipe.recipe import load_recipe
from tests.pipeline.services import RECIPES, Server, draftworks, last_json

pytestmark = pytest.mark.vllm
KINDS = {"corpus", "states", "vocabulary", "draft", "verdict", "measurement", "package"}


@pytest.fixture(scope="module")
def smoke(home: Path) -> dict[str, Any]:
    """Run smoke.toml once; every test here looks at what it left."""
    started = time.monotonic()
    done = draftworks(home, "produce", str(RECIPES / "smoke.toml"), "--json", timeout_s=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return {**last_json(done), "seconds": time.monotonic() - started, "output": done.stdout}


def bucket(home: Path) -> Path:
    """Return the folder in which the S3 server keeps the bucket."""
    return home / "s3" / "draftworks"


def manifest(home: Path, kind: str) -> dict[str, Any]:
    """Return what the smoke recipe made of one kind; other recipes' artifacts lie beside it."""
    manifests = [json.loads(path.read_text()) for path in (bucket(home) / kind).glob("*/manifest.json")]
    (found,) = [m for m in manifests if m["provenance"]["recipe"]["name"] == "smoke"]
    loaded: dict[str, Any] = found
    return loaded


def test_the_last_line_says_what_came_out(smoke: dict[str, Any]) -> None:
    assert smoke["verdict"] in ("PASS", "WARN")
    assert smoke["acceptance_length"] >= 1.0
    assert smoke["acceptance_length_general"] >= 1.0
    assert set(smoke["speedup"]) == {"1", "4"}
    assert smoke["draft"].startswith("s3://draftworks/package/")
    assert "/runs/flow-run/" in smoke["report"]


def test_the_draft_was_loaded_by_vllm_and_its_tokens_were_accepted(home: Path, smoke: dict[str, Any]) -> None:
    measurement = bucket(home) / "measurement" / manifest(home, "measurement")["fingerprint"]
    results = [json.loads(line) for line in (measurement / "results-draft.jsonl").read_text().splitlines()]
    assert len(results) == 24
    assert sum(result["num_accepted"] for result in results) > 0
    assert (
        "Eagle3" in (measurement / "vllm-draft.log").read_text()
        or "eagle3" in (measurement / "vllm-draft.log").read_text()
    )


def test_every_stage_left_an_artifact_with_account_cost_and_provenance(home: Path, smoke: dict[str, Any]) -> None:
    for kind in KINDS:
        found = manifest(home, kind)
        assert found["cost"]["seconds"] > 0
        assert found["provenance"]["engine"]["vllm"].startswith("0.")
        assert found["provenance"]["recipe"]["name"] == "smoke"
        assert not list((bucket(home) / kind / found["fingerprint"] / "parts").glob("*.json"))
    assert manifest(home, "corpus")["account"]["num_input"] == 1080
    assert manifest(home, "states")["account"] == {
        "num_failed": 0,
        "num_input": manifest(home, "corpus")["account"]["num_kept"],
        "num_kept": manifest(home, "corpus")["account"]["num_kept"],
        "num_skipped": 0,
        "reasons": {},
    }


def test_the_run_page_has_the_numbers_the_plots_and_the_links(server: Server, smoke: dict[str, Any]) -> None:
    run = smoke["report"].rsplit("/", 1)[1]
    by_key = {found["key"]: found for found in server.artifacts(run)}
    assert {f"stage-{kind}" for kind in KINDS} <= set(by_key)
    page = by_key["run-summary"]["data"]
    assert page.count("data:image/svg+xml;base64,") == 2
    assert f"{smoke['acceptance_length']:.2f}" in page
    assert smoke["draft"] in page
    progress = [found for found in server.artifacts(run) if found["type"] == "progress"]
    assert len(progress) == 4
    assert all(found["data"] == 100.0 for found in progress)


def test_the_overhead_of_the_flow_is_small(server: Server, home: Path, smoke: dict[str, Any]) -> None:
    run = server.get(f"/flow_runs/{smoke['report'].rsplit('/', 1)[1]}")
    work = sum(manifest(home, kind)["cost"]["seconds"] for kind in KINDS)
    assert run["total_run_time"] <= 1.1 * work


def test_the_run_was_never_taken_for_dead(server: Server, smoke: dict[str, Any]) -> None:
    run = smoke["report"].rsplit("/", 1)[1]
    states = {state["type"] for state in server.get(f"/flow_run_states/?flow_run_id={run}")}
    assert "COMPLETED" in states
    assert "CRASHED" not in states


def test_a_second_run_recomputes_nothing(home: Path, smoke: dict[str, Any]) -> None:
    logs_before = {path: path.stat().st_mtime for path in (home / "scratch").rglob("*.log")}
    started = time.monotonic()
    again = draftworks(home, "produce", str(RECIPES / "smoke.toml"), "--json")
    seconds = time.monotonic() - started
    assert again.returncode == 0, again.stderr
    assert {key: last_json(again)[key] for key in ("draft", "verdict", "acceptance_length")} == {
        key: smoke[key] for key in ("draft", "verdict", "acceptance_length")
    }
    assert again.stdout.count("reused") + again.stderr.count("reused") >= len(KINDS)
    assert {path: path.stat().st_mtime for path in (home / "scratch").rglob("*.log")} == logs_before
    assert seconds < 15


def test_the_trained_draft_passes_the_check_of_the_command_line(home: Path, smoke: dict[str, Any]) -> None:
    folder = bucket(home) / "draft" / manifest(home, "draft")["fingerprint"]
    target = home / "targets" / load_recipe(RECIPES / "smoke.toml").target.model
    done = draftworks(home, "check", "draft", str(folder), "--target", str(target), "--json")
    assert done.returncode == 0, done.stdout
    assert last_json(done)["outcome"] in ("PASS", "WARN")
