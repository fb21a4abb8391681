"""Guards daemons and their records: found again exactly, stopped with all they started, never mistaken for others."""

import json
import os
import socket
import stat
import sys
import time
from pathlib import Path

import pytest

from infra.daemon import Daemon, DaemonCommand, group_members, has_its_port, is_alive, start_daemon, stop_daemon
from infra.running import (
    KEYS,
    RECORD,
    Running,
    environment,
    exclusive,
    forget_running,
    new_keys,
    read_running,
    run_folder,
    write_running,
)
from tasks.errors import CommandError, EvidenceError
from tasks.process.ports import LOOPBACK, free_port, is_port_taken

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("ready", flush=True)
time.sleep(300)
"""


def command(tmp_path: Path, script: str, env: dict[str, str] | None = None, grace_s: float = 5.0) -> DaemonCommand:
    return DaemonCommand(
        name="some",
        argv=(sys.executable, "-c", script),
        env=dict(os.environ) if env is None else env,
        folder=tmp_path,
        log_path=tmp_path / "logs" / "some.log",
        grace_s=grace_s,
    )


def test_a_daemon_has_a_session_of_its_own_and_stops(tmp_path: Path) -> None:
    daemon = start_daemon(command(tmp_path, "import time; time.sleep(300)"))
    assert is_alive(daemon)
    assert os.getsid(daemon.pid) == daemon.pid != os.getsid(0)
    assert stop_daemon(daemon)
    assert not is_alive(daemon)
    assert not stop_daemon(daemon)


def test_one_that_ignores_sigterm_dies_with_its_children(tmp_path: Path) -> None:
    asked = command(tmp_path, STUBBORN, grace_s=0.2)
    daemon = start_daemon(asked)
    limit = time.monotonic() + 20
    while "ready" not in asked.log_path.read_text() and time.monotonic() < limit:
        time.sleep(0.05)
    assert len(group_members(daemon.pid)) == 2
    stop_daemon(daemon)
    assert not group_members(daemon.pid)


def test_another_process_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    daemon = start_daemon(command(tmp_path, "import time; time.sleep(300)"))
    reused = daemon.model_copy(update={"start": daemon.start - 1})
    rebooted = daemon.model_copy(update={"boot": "another"})
    assert not is_alive(reused) and not is_alive(rebooted)
    assert not stop_daemon(reused) and is_alive(daemon)
    stop_daemon(daemon)


def test_a_port_counts_only_for_the_daemon_that_has_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        loser = start_daemon(command(tmp_path, "import time; time.sleep(300)")).model_copy(update={"port": port})
        assert is_port_taken(port) and not has_its_port(loser)
        stop_daemon(loser)
    port = free_port()
    script = f"import socket, time; s = socket.create_server(('{LOOPBACK}', {port})); time.sleep(300)"
    winner = start_daemon(command(tmp_path, script)).model_copy(update={"port": port})
    limit = time.monotonic() + 20
    while not is_port_taken(port) and time.monotonic() < limit:
        time.sleep(0.05)
    assert has_its_port(winner)
    stop_daemon(winner)
    assert not has_its_port(winner)


def test_its_environment_is_what_was_given_and_nothing_else(tmp_path: Path) -> None:
    asked = command(
        tmp_path, "import os; print(sorted(os.environ), flush=True); import time; time.sleep(300)", env={"ONLY": "this"}
    )
    daemon = start_daemon(asked)
    limit = time.monotonic() + 20
    while "ONLY" not in asked.log_path.read_text() and time.monotonic() < limit:
        time.sleep(0.05)
    assert "ONLY" in asked.log_path.read_text() and "HOME" not in asked.log_path.read_text()
    stop_daemon(daemon)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    asked = DaemonCommand("some", ("/no/such/program",), dict(os.environ), tmp_path, tmp_path / "some.log", grace_s=1.0)
    with pytest.raises(CommandError, match="cannot start some: /no/such/program: No such file"):
        start_daemon(asked)


def test_the_record_comes_back_and_goes(tmp_path: Path) -> None:
    daemon = Daemon(name="s3", port=1, grace_s=1.0, boot="b", pid=1, start=1, program="/p")
    running = Running(s3=daemon, api_url="http://127.0.0.1:1/api", client_env={"A": "1"})
    assert read_running(tmp_path) is None and environment(tmp_path) == {}
    write_running(tmp_path, running)
    keys = new_keys(tmp_path)
    assert read_running(tmp_path) == running
    assert environment(tmp_path) == {"A": "1", **keys}
    assert running.ui_url == "http://127.0.0.1:1"
    forget_running(tmp_path)
    assert not run_folder(tmp_path).exists()


def test_keys_are_random_private_and_not_in_the_record(tmp_path: Path) -> None:
    assert new_keys(tmp_path) != new_keys(tmp_path)
    path = run_folder(tmp_path) / KEYS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(run_folder(tmp_path).stat().st_mode) == 0o700
    write_running(tmp_path, Running())
    assert json.loads(path.read_text())["AWS_SECRET_ACCESS_KEY"] not in (run_folder(tmp_path) / RECORD).read_text()


def test_a_foreign_record_is_refused(tmp_path: Path) -> None:
    write_running(tmp_path, Running())
    (run_folder(tmp_path) / RECORD).write_text('{"pid": 1}')
    with pytest.raises(EvidenceError, match="is not a record of running services"):
        read_running(tmp_path)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(CommandError, match="is at work"), exclusive(tmp_path):
        pass
