"""Guards the night: scheduled at the right hour, skips when nothing is new, and a champion moves for a reason."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.pipeline.services import Server, tiny, write_prompts

pytestmark = pytest.mark.vllm


def night(server: Server, recipe: dict[str, Any], timeout_s: float) -> tuple[str, float]:
    """Run the deployment; return the first sentence of its page and the seconds that the run took."""
    run = server.start("retrain-nightly", {"recipe": recipe})
    assert server.wait(run, timeout_s) == "COMPLETED", server.logs(run)
    page = next(found for found in server.artifacts(run) if found["key"] == "run-summary")
    return str(page["description"]), float(server.get(f"/flow_runs/{run}")["total_run_time"])


def champion(home: Path) -> dict[str, Any]:
    pointers = list((home / "s3" / "draftworks" / "champions").glob("*.json"))
    assert len(pointers) == 1
    found: dict[str, Any] = json.loads(pointers[0].read_text())
    return found


def test_the_schedule_is_at_two_in_the_morning_local_time(server: Server) -> None:
    deployment = server.deployment("retrain-nightly")["id"]
    asked = {
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        "deployments": {"id": {"any_": [deployment]}},
        "sort": "EXPECTED_START_TIME_ASC",
    }
    limit = time.monotonic() + 60
    while len(runs := server.post("/flow_runs/filter", asked)) < 2:
        assert time.monotonic() < limit, "no runs were scheduled"
        time.sleep(1)
    starts = [datetime.fromisoformat(run["expected_start_time"]) for run in runs]
    local = [start.astimezone(ZoneInfo("Europe/Berlin")) for start in starts]
    assert {(start.hour, start.minute) for start in local} == {(2, 0)}


def test_nights_with_and_without_new_prompts(server: Server, home: Path, incoming: Path) -> None:
    prompts = incoming
    sentence, _ = night(server, tiny(prompts), 600)
    assert "first champion" in sentence, sentence
    first = champion(home)

    sentence, seconds = night(server, tiny(prompts), 60)
    assert sentence.startswith("Skipped: prompts, recipe and target are those of the champion")
    assert seconds < 15

    write_prompts(prompts / "tuesday.jsonl", 100, 24)
    sentence, _ = night(server, tiny(prompts), 900)
    assert sentence.startswith(("The champion moved", "The champion stays"))
    after = champion(home)
    moved = after["current"] != first["current"]
    assert moved == sentence.startswith("The champion moved")
    assert after["history"][-1]["replaced"] == (first["current"]["fingerprint"] if moved else None)

    sentence, seconds = night(server, tiny(prompts), 60)
    assert sentence.startswith("Skipped")
    assert seconds < 15
