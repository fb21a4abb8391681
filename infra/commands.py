"""The command lines of the three services; secrets stand in their environment only."""

import socket
import sys
from pathlib import Path

from infra.daemon import DaemonCommand
from infra.environment import POOL, own_environment, server_environment, worker_environment
from infra.running import log_folder
from tasks.process.ports import LOOPBACK

S3_GRACE_S = 5.0
PREFECT_GRACE_S = 10.0
WORKER_GRACE_S = 20.0
# -P: the working folder is not searched for modules.
PYTHON = (sys.executable, "-P", "-m")


def s3_command(home: Path, port: int, keys: dict[str, str]) -> DaemonCommand:
    """Return the embedded S3 server, its buckets as folders below HOME/s3."""
    return DaemonCommand(
        name="s3",
        argv=(*PYTHON, "localbucket", "--host", LOOPBACK, "--port", str(port), str(_folder(home, "s3"))),
        env={**own_environment(), **keys},
        folder=home,
        log_path=log_folder(home) / "s3.log",
        grace_s=S3_GRACE_S,
        port=port,
    )


def prefect_command(home: Path, port: int) -> DaemonCommand:
    """Return the Prefect server, its database below HOME/prefect."""
    return DaemonCommand(
        name="prefect",
        argv=(*PYTHON, "prefect", "server", "start", "--host", LOOPBACK, "--port", str(port)),
        env=server_environment(home, port),
        # Prefect reads settings from files in its working folder: here are none.
        folder=_folder(home, "prefect"),
        log_path=log_folder(home) / "prefect.log",
        grace_s=PREFECT_GRACE_S,
        port=port,
    )


def worker_command(home: Path, client_env: dict[str, str], keys: dict[str, str]) -> DaemonCommand:
    """Return the worker of the pool; its flow runs inherit its environment."""
    start = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", worker_name())
    return DaemonCommand(
        name="worker",
        argv=(*PYTHON, *start, "--install-policy", "never"),
        env=worker_environment(client_env, keys),
        folder=_folder(home, "prefect"),
        log_path=log_folder(home) / "worker.log",
        grace_s=WORKER_GRACE_S,
    )


def worker_name() -> str:
    """Return the name by which the pool knows this machine's worker."""
    return f"draftworks-{socket.gethostname()}"


def _folder(home: Path, name: str) -> Path:
    folder = home / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
