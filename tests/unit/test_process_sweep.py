"""Guards that kill -9 of an owner stops its children, and that a sweep stops exactly what is recorded and orphaned."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.process.child import Child, Command
from tasks.process.lifeline import boot_id, describe
from tasks.process.sweep import sweep_leftovers
from tests.unit.test_process_child import are_gone, start_stubborn, wait_for

OWNER = """
import sys, time
from pathlib import Path
from tests.unit.test_process_child import start_stubborn
folder = Path(sys.argv[1])
child, pids = start_stubborn(folder, sys.argv[2], grace_s=0.5)
(folder / "all").write_text(" ".join(map(str, [child.pid, *pids])))
time.sleep(120)
"""


def start_owner(folder: Path, how: str) -> tuple["subprocess.Popen[bytes]", list[int]]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), how], cwd=Path(__file__).parents[2])
    wait_for(folder / "all")
    time.sleep(0.05)
    return owner, [int(text) for text in (folder / "all").read_text().split()]


@pytest.mark.parametrize("how", ["group", "session"])
def test_kill_of_the_owner_stops_everything(tmp_path: Path, how: str) -> None:
    owner, pids = start_owner(tmp_path, how)
    owner.kill()
    owner.wait()
    assert are_gone(pids)
    assert list((tmp_path / "running").iterdir()) == []


def test_kill_of_owner_and_lifeline_is_swept(tmp_path: Path) -> None:
    script = "import time; time.sleep(120)"
    code = f"""
import os, signal, sys
from pathlib import Path
from tasks.process.child import Child, Command
child = Child.start(Command((sys.executable, "-c", {script!r})), Path(sys.argv[1]) / "log")
while not list((Path(sys.argv[1]) / "running").glob("*.json")): pass
os.kill(child.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root).returncode == -signal.SIGKILL
    record = json.loads(next((tmp_path / "running").glob("*.json")).read_text())
    assert describe(record["command"]["pid"]) == record["command"]
    assert sweep_leftovers(tmp_path) == [[sys.executable, "-c", script]]
    assert are_gone([record["command"]["pid"]], within_s=2)
    assert sweep_leftovers(tmp_path) == []


def test_children_of_a_living_owner_are_left_alone(tmp_path: Path) -> None:
    child, pids = start_stubborn(tmp_path, "group")
    with child:
        wait_for(tmp_path / "running" / f"{child.pid}.json")
        assert sweep_leftovers(tmp_path) == []
        assert all(describe(pid) for pid in [child.pid, *pids])


@pytest.mark.parametrize(
    "change", [{"start": 1}, {"program": "/usr/bin/other"}, {"boot": "another"}], ids=["start", "program", "boot"]
)
def test_a_stranger_with_a_recorded_pid_is_not_touched(tmp_path: Path, change: dict[str, object]) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    try:
        known = {**(describe(stranger.pid) or {}), **{key: change[key] for key in change if key != "boot"}}
        dead = {"pid": 2**22 + 1, "start": 1, "program": "/none"}
        record = {
            "boot": change.get("boot", boot_id()),
            "owner": dead,
            "lifeline": dead,
            "command": known,
            "argv": ["x"],
        }
        (tmp_path / "running").mkdir()
        (tmp_path / "running" / "1.json").write_text(json.dumps(record))
        assert sweep_leftovers(tmp_path) == []
        assert stranger.poll() is None
        assert list((tmp_path / "running").iterdir()) == []
    finally:
        stranger.kill()
        stranger.wait()


def test_a_run_folder_without_records_is_fine(tmp_path: Path) -> None:
    assert sweep_leftovers(tmp_path / "missing") == []
    with Child.start(Command((sys.executable, "-c", "")), tmp_path / "log", run_folder=tmp_path / "run") as child:
        child.stop()
    assert (tmp_path / "run" / "running").is_dir()
    assert os.listdir(tmp_path / "run" / "running") == []
