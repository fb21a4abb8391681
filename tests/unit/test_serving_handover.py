"""Guards that a hidden-states file is used only when its writer has let go of the lock."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from tasks.errors import RequestUnanswered
from tasks.serving.handover import discard, lock_path, wait_complete


def test_waits_for_the_writer_to_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with lock_path(path).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def write() -> None:
            time.sleep(0.3)
            path.write_bytes(b"complete")
            held.close()

        writer = threading.Thread(target=write)
        writer.start()
        started = time.monotonic()
        assert wait_complete(path, 10).read_bytes() == b"complete"
        assert time.monotonic() - started > 0.2
        writer.join()
    discard(path)
    discard(path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_never_opens_is_a_named_timeout(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"half")
    with lock_path(path).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RequestUnanswered, match=r"not complete within 0.1 s: .*a.safetensors.lock is still held"):
            wait_complete(path, 0.1)


def test_a_free_lock_without_a_file_is_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    lock_path(path).touch()
    with pytest.raises(RequestUnanswered, match="its write failed"):
        wait_complete(path, 5)


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestUnanswered, match="never appeared"):
        wait_complete(tmp_path / "a.safetensors", 0.1)
