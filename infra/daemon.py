"""Daemons that outlive the command that started them, known again by boot, process id, start time and program.

A Daemon is a small record that can be kept in a file:

    {"name": "prefect", "port": 4200, "grace_s": 10.0,
     "boot": "1f0c...", "pid": 57, "start": 8140, "program": "/usr/bin/python3.11"}
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from infra import detach
from tasks.errors import CommandError
from tasks.process.lifeline import boot_id, describe

POLL_S = 0.05
KILL_WAIT_S = 5.0
TAIL_LINES = 15
ZOMBIE_STATES = "ZX"


class Daemon(BaseModel):
    """One running daemon; its process leads a session and a group of the same number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    port: int | None
    grace_s: float
    boot: str
    pid: int
    start: int
    program: str


@dataclass(frozen=True)
class DaemonCommand:
    """What to start: secrets may be in env (never in argv), which is the whole environment of the daemon."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    log_path: Path
    grace_s: float
    port: int | None = None


def start_daemon(command: DaemonCommand) -> Daemon:
    """Return the record of a daemon just started; it may still die. Raises CommandError: no such program."""
    command.log_path.parent.mkdir(parents=True, exist_ok=True)
    launcher = [sys.executable, "-I", "-S", detach.__file__, str(command.log_path), str(command.folder), "--"]
    ended = subprocess.run([*launcher, *command.argv], env=command.env, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise CommandError(f"cannot start {command.name}: {ended.stderr.strip()}", ended.returncode)
    pid = int(ended.stdout)
    process = describe(pid)
    if process is None:
        raise died(command)
    known = {"name": command.name, "port": command.port, "grace_s": command.grace_s, "boot": boot_id()}
    return Daemon.model_validate({**known, **process})


def died(command: DaemonCommand) -> CommandError:
    """Return the error for a daemon that ended by itself, with the end of its log."""
    lines = command.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    return CommandError(
        f"{command.name} ended right after its start. Its whole output is in {command.log_path}; the last lines are",
        log_tail="\n".join(lines[-TAIL_LINES:]),
    )


def is_alive(daemon: Daemon) -> bool:
    """Return whether this very process still runs; false after a reboot, or when its number was given away."""
    process = describe(daemon.pid)
    if process is None or daemon.boot != boot_id():
        return False
    return process == {"pid": daemon.pid, "start": daemon.start, "program": daemon.program}


def has_its_port(daemon: Daemon) -> bool:
    """Return whether the daemon itself listens on its port: what answers there may be somebody else's."""
    try:
        sockets = psutil.Process(daemon.pid).net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr[1] == daemon.port for one in sockets)


def group_members(group: int) -> list[int]:
    """Return the live processes of a process group."""
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            state, _, number = text.rpartition(")")[2].split()[:3]
            if int(number) == group and state not in ZOMBIE_STATES:
                members.append(int(entry))
    return members


def wait_until_empty(group: int, seconds: float) -> bool:
    """Return whether the process group has no live member any more, after waiting that long at most."""
    limit = time.monotonic() + seconds
    while group_members(group):
        if time.monotonic() >= limit:
            return False
        time.sleep(POLL_S)
    return True


def stop_daemon(daemon: Daemon) -> bool:
    """Stop the daemon and its group; return whether it ran.

    SIGTERM goes to the daemon alone, which stops its own children in its own way; SIGKILL goes to what is left.
    """
    if not is_alive(daemon):
        return False
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGTERM)
    if not wait_until_empty(daemon.pid, daemon.grace_s):
        with suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        wait_until_empty(daemon.pid, KILL_WAIT_S)
    return True
