"""Guards the end of a run: cancelled or killed, no child process, server or lock file stays behind."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.pipeline.production import wait_for
from tests.pipeline.services import Server, tiny, write_prompts

pytestmark = pytest.mark.vllm
CHILDREN = ("vllm.entrypoints", "tasks.drafting", "lifeline.py", "VLLM::")


def children_of_runs(home: Path) -> list[psutil.Process]:
    """Return the processes that stages of this home started."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if any(mark in line for mark in CHILDREN) and process.environ().get("DRAFTWORKS_HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def started_run(server: Server, home: Path, tmp_path: Path, seed: int) -> str:
    write_prompts(tmp_path / "prompts.jsonl", 1000 * seed, 24)
    recipe = tiny(tmp_path / "prompts.jsonl")
    run = server.start("produce-draft", {"recipe": recipe})
    wait_for(lambda: children_of_runs(home), 120, "the run never started a child")
    return run


def test_a_cancelled_run_leaves_nothing(server: Server, home: Path, tmp_path: Path) -> None:
    run = started_run(server, home, tmp_path, 1)
    server.post(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert server.wait(run, 60) == "CANCELLED"
    wait_for(lambda: not children_of_runs(home), 40, f"left: {children_of_runs(home)}")
    assert not list((home / "scratch" / "servers").rglob("*.json"))


def test_a_killed_run_leaves_nothing(server: Server, home: Path, tmp_path: Path) -> None:
    run = started_run(server, home, tmp_path, 2)
    flow = [p for p in psutil.process_iter() if run in _run_id(p)]
    assert flow
    os.kill(flow[0].pid, signal.SIGKILL)
    wait_for(lambda: not children_of_runs(home), 40, f"left: {children_of_runs(home)}")
    assert server.wait(run, 60) == "CRASHED"


def _run_id(process: psutil.Process) -> str:
    try:
        return str(process.environ().get("PREFECT__FLOW_RUN_ID", ""))
    except psutil.Error:
        return ""
