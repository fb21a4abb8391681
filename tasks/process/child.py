"""One child process under a lifeline, its output in a log file.

A log holds one block per attempt, each begun by a line such as

    ==== 2026-08-21T10:00:00+00:00 started: python -m trainer --epochs 5
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks.errors import CommandError
from tasks.process import lifeline
from tasks.process.sweep import records_folder, stop_recorded

LIFELINE_SLACK_S = 10.0  # over the grace: SIGKILL, its wait, and a busy machine
TAIL_BYTES = 64 * 1024
LINE_BREAK = re.compile(rb"[\r\n]+")  # progress bars redraw with a carriage return
CHILD_DEFAULTS = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TQDM_MININTERVAL": "30"}


@dataclass(frozen=True)
class Command:
    """A command line, the variables it needs beyond the inherited ones, and where it runs. Never holds a secret."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    def __str__(self) -> str:
        """Return the command line as it could be typed in a shell."""
        return shlex.join(self.argv)


def child_environment(extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of a child: inherited, without the marks of the flow run, plus extra.

    PREFECT__* names the flow run of a process; with it a child would be taken for the flow's own process.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    return {**inherited, **CHILD_DEFAULTS, **extra}


def to_line(raw: bytes) -> str:
    """Return the text of one line of output, safe to show and to send: no NUL, no lone surrogate."""
    return raw.decode("utf-8", errors="replace").replace("\0", "")


class Child:
    """A running command. Use as a context manager: it is stopped at the end, however that comes."""

    def __init__(self, command: Command, log_path: Path, grace_s: float, records: Path) -> None:
        """Start it; use start() instead."""
        self.command = command
        self.log_path = log_path
        self._grace_s = grace_s
        self._status: int | None = None
        self._tie, far_end = socket.socketpair()
        self._tie.setblocking(False)
        with far_end, log_path.open("ab") as log:
            log.write(f"==== {datetime.now(UTC).isoformat(timespec='seconds')} started: {command}\n".encode())
            log.flush()
            self.log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", lifeline.__file__, str(grace_s), str(records), "--", *command.argv],
                stdin=far_end.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(command.env),
                cwd=command.cwd,
                start_new_session=True,
            )
        self._record = records / f"{self._process.pid}.json"

    @classmethod
    def start(cls, command: Command, log_path: Path, grace_s: float = 10, run_folder: Path | None = None) -> Self:
        """Return the command, started.

        log_path: output is appended. run_folder: where the record for sweep_leftovers goes; default: the log's folder.
        Raises CommandError: the program or the working folder does not exist.
        """
        _require_startable(command)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        return cls(command, log_path, grace_s, records_folder(run_folder or log_path.parent))

    @property
    def pid(self) -> int:
        """Return the process id of the lifeline, which leads the session of the command and outlives it."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the command is under way. What it leaves running is not counted; stop() waits for that."""
        return self.exit_status() is None

    def exit_status(self) -> int | None:
        """Return the command's exit status, negative for a signal; None while it runs."""
        if self._status is None and self._tie.fileno() >= 0:
            with suppress(BlockingIOError):
                received = self._tie.recv(64)
                # Empty: the lifeline is gone without a word, that is, killed; its own status stands in then.
                self._status = int(received) if received else None
        return self._process.poll() if self._status is None else self._status

    def tail(self, num_lines: int = 40) -> str:
        """Return the last lines that this attempt has put out."""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start_bytes, size - TAIL_BYTES))
            lines = [to_line(raw) for raw in LINE_BREAK.split(log.read()) if raw.strip()]
        return "\n".join(lines[-num_lines:])

    def stop(self) -> None:
        """Stop the command and all that it started; return when it is gone. Harmless when it has ended."""
        self.exit_status()
        self._tie.close()
        try:
            self._process.wait(self._grace_s + LIFELINE_SLACK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # Only there when the lifeline itself was killed: it removes its record last.
        if self._record.exists():
            stop_recorded(self._record)

    def __enter__(self) -> Self:
        """Return the child itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the child."""
        self.stop()


def _require_startable(command: Command) -> None:
    program = command.argv[0]
    if command.cwd is not None and not command.cwd.is_dir():
        raise CommandError(f"cannot start {program}: its working folder {command.cwd} does not exist")
    path = child_environment(command.env).get("PATH")
    if shutil.which(program, path=path) is None:
        raise CommandError(
            f"cannot start {program}: no such program, or not executable. Check the path in the settings."
        )
