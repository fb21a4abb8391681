"""Supervisor of one command: stops all of it when the other end of stdin closes. A script; standard library only.

    python -I -S lifeline.py GRACE_S RECORDS_FOLDER -- COMMAND [ARGUMENT ...]

It is started in a session of its own, with a socket (or a pipe) on stdin of which only its owner has the other end. The
kernel closes that end when the owner ends in any way, kill -9 included. COMMAND gets a process group of its own and
/dev/null as stdin.

Stopping (stdin at its end, or SIGTERM, SIGINT, SIGHUP): SIGTERM to the group and to every descendant that left it,
GRACE_S seconds of patience, then SIGKILL to the same. When COMMAND ends by itself, its exit status is written to the
socket at once ("3", or "-9" for a signal), and what it left running is stopped likewise.

Exit status: that of COMMAND; a COMMAND that died of a signal is passed on by dying of the same signal (its owner sees
the negative number). 126 or 127: COMMAND, or its record, could not be made.

While COMMAND runs, RECORDS_FOLDER/<pid>.json says who it is (see tasks/process/sweep.py). Linux only.
"""

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphaned descendants become children of this process
KILL_WAIT_S = 5.0  # a process in uninterruptible sleep may outlast SIGKILL; then there is nothing more to do
POLL_S = 0.02
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def describe(pid: int) -> dict[str, object] | None:
    """Return pid, start time (clock ticks since boot) and program file of a live process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None
    return {"pid": pid, "start": int(fields[19]), "program": program}


def boot_id() -> str:
    """Return the kernel's id of this boot: process ids of another boot or host mean nothing here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def parents() -> dict[int, int]:
    """Return parent by process id for every process that is not a zombie."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):
            text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            state, parent = text.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(entry)] = int(parent)
    return found


def descendants() -> list[int]:
    """Return the live processes below this one. As a subreaper it also sees those whose parent is gone."""
    parent_of, below = parents(), {os.getpid()}
    while more := {pid for pid, parent in parent_of.items() if parent in below and pid not in below}:
        below |= more
    return sorted(below - {os.getpid()})


class Supervisor:
    """One command, from start to the end of its last descendant."""

    def __init__(self, argv: list[str], grace_s: float, records: str) -> None:
        """Start argv in a process group of its own and leave the record."""
        self.grace_s = grace_s
        self.wait_status: int | None = None
        self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0)
        self.record = Path(records) / f"{os.getpid()}.json"
        try:
            self._write_record(argv)
        except OSError:
            self.stop()
            raise

    def _write_record(self, argv: list[str]) -> None:
        record = {
            "boot": boot_id(),
            "owner": describe(os.getppid()),
            "lifeline": describe(os.getpid()),
            "command": describe(self.child.pid),
            "argv": argv,
        }
        part = self.record.with_suffix(".part")
        part.write_text(json.dumps(record), encoding="utf-8")
        part.replace(self.record)

    def reap(self) -> None:
        """Collect every ended child; orphans that came to us included."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.child.pid:
                    self.wait_status = ended[1]
                    self.child.returncode = os.waitstatus_to_exitcode(ended[1])
                    with suppress(OSError):  # the owner may be gone, and a pipe has no way back
                        os.write(0, str(self.child.returncode).encode())

    def wait(self, wake_fd: int) -> None:
        """Return when the command has ended or when it has to be stopped."""
        poller = select.poll()
        poller.register(0, select.POLLIN | select.POLLHUP)
        poller.register(wake_fd, select.POLLIN)
        while True:
            self.reap()
            if self.wait_status is not None:
                return
            for fd, _ in poller.poll():
                received = os.read(fd, 512)
                if fd == 0 and not received:
                    return
                if fd == wake_fd and any(number in STOP_SIGNALS for number in received):
                    return

    def _signal_all(self, number: int) -> None:
        """Signal the group in one go, then each descendant that left it."""
        groups = {}
        for pid in descendants():
            with suppress(ProcessLookupError):
                groups[pid] = os.getpgid(pid)
        with suppress(ProcessLookupError, PermissionError):
            # An empty group's number may already belong to somebody else.
            if self.child.pid in groups.values():
                os.killpg(self.child.pid, number)
        for pid, group in groups.items():
            if group != self.child.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def _all_gone_within(self, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while True:
            self.reap()
            if not descendants():
                self.reap()
                return True
            if time.monotonic() >= limit:
                return False
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the group and every other descendant; return when all are gone."""
        self._signal_all(signal.SIGTERM)
        if self._all_gone_within(self.grace_s):
            return
        limit = time.monotonic() + KILL_WAIT_S
        while time.monotonic() < limit:
            self._signal_all(signal.SIGKILL)
            if self._all_gone_within(POLL_S):
                return
        print(f"lifeline: processes {descendants()} outlasted SIGKILL", file=sys.stderr, flush=True)  # noqa: T201

    def finish(self) -> int:
        """Remove the record and return the status to exit with; does not return after a signal."""
        self.record.unlink(missing_ok=True)
        code = os.waitstatus_to_exitcode(self.wait_status) if self.wait_status is not None else 1
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return code


def catch_signals() -> int:
    """Turn signals into bytes on a pipe and return its reading end."""
    wake_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return wake_fd


def main(argv: list[str]) -> int:
    """Run the command line in the module's docstring."""
    if len(argv) < 5 or argv[3] != "--":
        print("usage: lifeline.py GRACE_S RECORDS_FOLDER -- COMMAND [ARGUMENT ...]", file=sys.stderr)  # noqa: T201
        return 2
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_fd = catch_signals()
    try:
        supervisor = Supervisor(argv[4:], float(argv[1]), argv[2])
    except OSError as error:
        print(f"cannot start {argv[4]}: {error}", file=sys.stderr)  # noqa: T201
        return 127 if isinstance(error, FileNotFoundError) else 126
    supervisor.wait(wake_fd)
    supervisor.stop()
    return supervisor.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
