"""Real S3-compatible servers as child processes on loopback, for tests and benchmarks."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.store.objects import ObjectStore, Patience, StoreLocation, connect

FAST = Patience(
    attempts=4,
    first_wait_s=0.01,
    longest_wait_s=0.05,
    connect_s=1,
    read_s=5,
    first_contact_s=2,
    part_bytes=5 * 1024 * 1024,
)
START_S = 30.0
STOP_S = 10.0


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def localbucket(folder: Path) -> Iterator[str]:
    """Yield the endpoint of a localbucket server that keeps its data in folder/data."""
    port = free_port()
    command = [sys.executable, "-m", "localbucket", str(folder / "data"), "--port", str(port)]
    with running(command, port, folder / "localbucket.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Yield the endpoint of a moto server."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, folder / "moto.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: list[str], port: int | None, log: Path, start_s: float = START_S) -> Iterator[None]:
    """Run a server until the block ends; wait first until its port, if any, is open."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        if port is not None:
            _wait_until_open(process, port, log, start_s)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(process: subprocess.Popen[bytes], port: int, log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} did not open port {port}: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def credentials(access_key: str = "test", secret_key: str = "test") -> Iterator[None]:
    """Set credentials for the time of a test module; the local servers accept any."""
    wanted = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_EC2_METADATA_DISABLED": "true"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def open_store(endpoint: str, prefix: str, patience: Patience = FAST) -> ObjectStore:
    """Return a store below a prefix of its own, in a bucket that is made if needed."""
    store = connect(StoreLocation(endpoint, "store-tests", prefix), patience)
    store.create_bucket()
    return store
