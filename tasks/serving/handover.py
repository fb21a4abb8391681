"""Hidden-state files, handed over by the server through a folder.

The server names the file in its answer and writes it afterwards: until it is complete, the server holds an exclusive
flock on <file>.lock. A free lock without a file means that the write failed.
"""

import fcntl
import time
from pathlib import Path

from tasks.errors import RequestUnanswered

POLL_S = 0.01


def lock_path(path: Path) -> Path:
    """Return the lock that belongs to a hidden-state file."""
    return path.with_name(f"{path.name}.lock")


def _is_released(lock: Path) -> bool:
    """Return whether the lock is there and nobody holds it exclusively."""
    try:
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def wait_complete(path: Path, timeout_s: float) -> Path:
    """Return the path when the server has finished writing it. Sleeps meanwhile: call it in a thread from async code.

    Raises RequestUnanswered: no lock, or a held one, for timeout_s; or the write failed. Ask for the row again.
    """
    lock = lock_path(path)
    limit = time.monotonic() + timeout_s
    while not _is_released(lock):
        if time.monotonic() > limit:
            state = "is still held by the server" if lock.exists() else "never appeared (is the folder shared?)"
            raise RequestUnanswered(
                f"the hidden states {path} were not complete within {timeout_s:g} s: {lock} {state}"
            )
        time.sleep(POLL_S)
    if not path.is_file():
        raise RequestUnanswered(
            f"the server released {lock} without writing {path}: its write failed (disk full?); its log has the cause"
        )
    return path


def discard(path: Path) -> None:
    """Remove a hidden-state file and its lock; harmless when they are gone."""
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)
