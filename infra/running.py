"""What `draftworks up` has started: HOME/run/up.json, and beside it the keys of the embedded S3 server.

    {"s3": {"name": "s3", "pid": 57, ...}, "prefect": {...}, "worker": {...},
     "api_url": "http://127.0.0.1:4200/api", "s3_endpoint": "http://127.0.0.1:9000",
     "client_env": {"PREFECT_API_URL": "http://127.0.0.1:4200/api", ...}}

client_env holds no secret. The keys are in HOME/run/s3-keys.json, which only its owner can read; they are drawn anew
for each start and reach other processes by their environment alone.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from infra.daemon import Daemon
from tasks.errors import CommandError, EvidenceError

RUN_FOLDER = "run"
RECORD = "up.json"
KEYS = "s3-keys.json"
KEY_BYTES = 10
SECRET_BYTES = 30


class Running(BaseModel):
    """The services of one home folder. s3 is None when the person uses a server of their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    s3: Daemon | None = None
    prefect: Daemon | None = None
    worker: Daemon | None = None
    s3_endpoint: str | None = None
    api_url: str | None = None
    client_env: dict[str, str] = {}
    registered: str = ""
    """Digest of what the registered deployments were made from."""

    @property
    def ui_url(self) -> str:
        """Return the address for a browser."""
        return (self.api_url or "").removesuffix("/api")

    def daemons(self) -> tuple[Daemon, ...]:
        """Return what was started, in the order in which it has to be stopped."""
        return tuple(daemon for daemon in (self.worker, self.prefect, self.s3) if daemon is not None)


def run_folder(home: Path) -> Path:
    """Return the folder of the records; it is there only while services are up."""
    return home / RUN_FOLDER


def log_folder(home: Path) -> Path:
    """Return the folder of the services' own logs; they stay after `down`."""
    return home / "logs"


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Hold the home folder against another `up` or `down`. Raises CommandError: one is at work."""
    home.mkdir(parents=True, exist_ok=True)
    folder = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CommandError(
            f"another `draftworks up` or `down` is at work on {home}. Wait for it, then try again."
        ) from error
    finally:
        os.close(folder)


def read_running(home: Path) -> Running | None:
    """Return the record; None when nothing is up. Raises EvidenceError: it is not one of ours."""
    path = run_folder(home) / RECORD
    try:
        return Running.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise EvidenceError(
            f"{path} is not a record of running services ({error.error_count()} faults). Stop what it names, "
            "remove the file, and run `draftworks up` again."
        ) from error


def write_running(home: Path, running: Running) -> None:
    """Write the record in one step."""
    _write(run_folder(home) / RECORD, running.model_dump_json(indent=2))


def forget_running(home: Path) -> None:
    """Remove the record and the keys."""
    shutil.rmtree(run_folder(home), ignore_errors=True)


def new_keys(home: Path) -> dict[str, str]:
    """Draw keys for the embedded S3 server, keep them, and return them under the usual names."""
    keys = {
        "AWS_ACCESS_KEY_ID": secrets.token_hex(KEY_BYTES).upper(),
        "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(SECRET_BYTES),
    }
    _write(run_folder(home) / KEYS, json.dumps(keys))
    return keys


def read_keys(home: Path) -> dict[str, str]:
    """Return the keys of the embedded S3 server; empty when there is none."""
    path = run_folder(home) / KEYS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def forget_keys(home: Path) -> None:
    """Remove the keys: another server has others, which come from the person's own environment."""
    (run_folder(home) / KEYS).unlink(missing_ok=True)


def environment(home: Path) -> dict[str, str]:
    """Return the variables with which a command talks to the running services, keys included; empty when none is up."""
    running = read_running(home)
    return {**running.client_env, **read_keys(home)} if running else {}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    part.replace(path)
