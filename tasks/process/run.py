"""Run a command to its end, passing its output on line by line."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tasks.errors import CommandError, CommandKilled, DeadlinePassed
from tasks.process.child import LINE_BREAK, Child, Command, to_line

POLL_S = 0.1
READ_BYTES = 1024 * 1024
LONGEST_LINE_BYTES = 64 * 1024  # output without any line break is passed on in pieces of this size


class LogFollower:
    """Reads what is added to a log file."""

    def __init__(self, path: Path, start_bytes: int) -> None:
        """Read on from start_bytes."""
        self._path = path
        self._at = start_bytes
        self._rest = b""

    def new_lines(self) -> tuple[list[str], int]:
        """Return the lines completed since the last call, and how many bytes were read."""
        with self._path.open("rb") as log:
            log.seek(self._at)
            data = log.read(READ_BYTES)
        self._at += len(data)
        pieces = LINE_BREAK.split(self._rest + data)
        self._rest = pieces.pop()
        if len(self._rest) > LONGEST_LINE_BYTES:
            pieces.append(self._rest)
            self._rest = b""
        return [to_line(raw) for raw in pieces if raw.strip()], len(data)

    def last_line(self) -> list[str]:
        """Return what follows the last line break, if anything."""
        rest, self._rest = self._rest, b""
        return [to_line(rest)] if rest.strip() else []


def _pass_on(follower: LogFollower, on_line: Callable[[str], None] | None) -> int:
    lines, num_bytes = follower.new_lines()
    if on_line is not None:
        for line in lines:
            on_line(line)
    return num_bytes


def _finish(child: Child, follower: LogFollower, on_line: Callable[[str], None] | None) -> None:
    while _pass_on(follower, on_line):
        pass
    for line in follower.last_line():
        if on_line is not None:
            on_line(line)
    status = child.exit_status()
    if status:
        ended = f"exit status {status}" if status > 0 else f"signal {-status}"
        kind = CommandError if status > 0 else CommandKilled
        raise kind(
            f"{os.path.basename(child.command.argv[0])} ended with {ended}. Command: {child.command}. "
            f"Its whole output is in {child.log_path}; the last lines are",
            exit_status=status,
            log_tail=child.tail(),
        )


def run_to_end(
    command: Command,
    log_path: Path,
    *,
    deadline_s: float,
    silent_s: float,
    on_line: Callable[[str], None] | None = None,
    run_folder: Path | None = None,
) -> None:
    """Run the command to its end; whatever ends the wait, nothing of the command is left running.

    deadline_s: longest run. silent_s: longest time without output. on_line: called with every line of output.
    Raises CommandError: exit status other than 0. CommandKilled: a signal ended it. DeadlinePassed: ran, or was silent,
    for too long.
    """
    with Child.start(command, log_path, run_folder=run_folder) as child:
        follower = LogFollower(log_path, child.log_start_bytes)
        started = heard = time.monotonic()
        # A loop of short sleeps: a wait in one piece would not let a cancellation interrupt it on every path.
        while child.is_running():
            now = time.monotonic()
            has_news = _pass_on(follower, on_line) > 0
            heard = now if has_news else heard
            if now - started > deadline_s:
                raise _too_long(child, f"ran for more than {deadline_s:g} s")
            if now - heard > silent_s:
                raise _too_long(child, f"put out nothing for {silent_s:g} s")
            if not has_news:
                time.sleep(POLL_S)
        child.stop()  # what it left running may still have written
        _finish(child, follower, on_line)


def _too_long(child: Child, what: str) -> DeadlinePassed:
    return DeadlinePassed(
        f"{os.path.basename(child.command.argv[0])} {what} and was stopped. Command: {child.command}. "
        f"Its whole output is in {child.log_path}; the last lines are",
        log_tail=child.tail(),
    )
