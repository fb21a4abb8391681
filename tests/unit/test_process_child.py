"""Guards that a child process is described, started, logged and stopped as promised, with all that it started."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import CommandError
from tasks.process import lifeline
from tasks.process.child import Child, Command, child_environment
from tasks.process.lifeline import describe

# Ignores SIGTERM, and so does its grandchild; both pids go to the file named by the first argument.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 2:
    inner = subprocess.Popen([sys.executable, __file__, sys.argv[1]], start_new_session=sys.argv[2] == "session")
    open(sys.argv[1] + ".part", "w").write(f"{os.getpid()} {inner.pid}")
    os.replace(sys.argv[1] + ".part", sys.argv[1])
time.sleep(120)
"""


def python(*args: str) -> Command:
    return Command((sys.executable, *args))


def wait_for(path: Path) -> str:
    limit = time.monotonic() + 20
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    return path.read_text()


def wait_ended(child: Child) -> None:
    limit = time.monotonic() + 20
    while child.is_running() and time.monotonic() < limit:
        time.sleep(0.02)


def start_stubborn(folder: Path, how: str, grace_s: float = 0.3) -> tuple[Child, list[int]]:
    script = folder / "stubborn.py"
    script.write_text(STUBBORN)
    pids = folder / "pids"
    child = Child.start(python(str(script), str(pids), how), folder / "log", grace_s=grace_s)
    return child, [int(text) for text in wait_for(pids).split()]


def are_gone(pids: list[int], within_s: float = 10) -> bool:
    limit = time.monotonic() + within_s
    while any(describe(pid) for pid in pids) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(describe(pid) for pid in pids)


def test_exit_status_and_output_are_passed_on(tmp_path: Path) -> None:
    with Child.start(python("-c", "print('hello'); raise SystemExit(7)"), tmp_path / "log") as child:
        wait_ended(child)
        assert child.exit_status() == 7
        assert child.tail() == "hello"
        assert not child.is_running()
        assert child.exit_status() == 7
    assert child.exit_status() == 7
    assert list((tmp_path / "running").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_death_by_signal_is_a_negative_status(tmp_path: Path, number: signal.Signals) -> None:
    with Child.start(python("-c", f"import os; os.kill(os.getpid(), {number})"), tmp_path / "log") as child:
        wait_ended(child)
        assert child.exit_status() == -number


@pytest.mark.parametrize("how", ["group", "session"])
def test_stop_ends_a_child_and_grandchild_that_ignore_sigterm(tmp_path: Path, how: str) -> None:
    child, pids = start_stubborn(tmp_path, how)
    with child:
        assert all(describe(pid) for pid in pids)
    assert are_gone([*pids, child.pid], within_s=0)
    assert child.exit_status() == -signal.SIGKILL


def test_a_killed_lifeline_is_made_up_for_by_stop(tmp_path: Path) -> None:
    with Child.start(python("-c", "import time; time.sleep(99)"), tmp_path / "log") as child:
        record = json.loads(wait_for(tmp_path / "running" / f"{child.pid}.json"))
        os.kill(child.pid, signal.SIGKILL)
    assert are_gone([record["command"]["pid"]], within_s=0)
    assert child.exit_status() == -signal.SIGKILL
    assert list((tmp_path / "running").iterdir()) == []


def test_what_a_command_leaves_running_is_stopped_when_it_ends(tmp_path: Path) -> None:
    code = "import subprocess,sys; print(subprocess.Popen([sys.executable,'-c','import time; time.sleep(99)']).pid)"
    with Child.start(python("-c", code), tmp_path / "log", grace_s=0.3) as child:
        wait_ended(child)
        assert child.exit_status() == 0
        child.stop()
        assert are_gone([int(child.tail())], within_s=0)


def test_the_child_environment_hides_the_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "x")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1")
    env = child_environment({"NO_COLOR": "0", "EXTRA": "1"})
    assert "PREFECT__FLOW_RUN_ID" not in env
    assert env["PREFECT_API_URL"] == "http://127.0.0.1:1"
    assert (env["NO_COLOR"], env["EXTRA"], env["PYTHONUNBUFFERED"], env["TQDM_MININTERVAL"]) == ("0", "1", "1", "30")


def test_a_missing_program_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot start /no/such/python: no such program"):
        Child.start(Command(("/no/such/python",)), tmp_path / "log")
    with pytest.raises(CommandError, match="working folder /no/such/folder does not exist"):
        Child.start(Command((sys.executable,), cwd=Path("/no/such/folder")), tmp_path / "log")


def test_a_file_that_is_no_program_ends_with_126(tmp_path: Path) -> None:
    script = tmp_path / "broken"
    script.write_bytes(b"\x7fELF nothing")
    script.chmod(0o755)
    with Child.start(Command((str(script),)), tmp_path / "log") as child:
        wait_ended(child)
        assert child.exit_status() == 126
        assert f"cannot start {script}" in child.tail()


def test_the_tail_is_of_this_attempt_and_readable(tmp_path: Path) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'a\rb\nc\xff\x00d\n\n')"
    for _ in range(2):
        with Child.start(python("-c", code), tmp_path / "log") as child:
            wait_ended(child)
            assert child.tail() == "a\nb\nc\ufffdd"
            assert child.tail(1) == "c\ufffdd"
    assert (tmp_path / "log").read_text(errors="replace").count("==== ") == 2


def test_the_end_of_a_command_is_known_before_the_end_of_what_it_left_running(tmp_path: Path) -> None:
    code = "import signal,subprocess; signal.signal(15, signal.SIG_IGN); subprocess.Popen(['sleep', '99']); exit(4)"
    started = time.monotonic()
    with Child.start(python("-c", code), tmp_path / "log", grace_s=3) as child:
        wait_ended(child)
        assert child.exit_status() == 4
        assert time.monotonic() - started < 2.9
    assert time.monotonic() - started > 3
    assert child.exit_status() == 4


def test_a_command_without_a_record_is_not_left_running(tmp_path: Path) -> None:
    argv = [sys.executable, lifeline.__file__, "5", str(tmp_path / "missing"), "--", "sleep", "99"]
    started = time.monotonic()
    ended = subprocess.run(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30)
    assert ended.returncode == 127
    assert "cannot start sleep" in ended.stderr and str(tmp_path / "missing") in ended.stderr
    assert time.monotonic() - started < 5
