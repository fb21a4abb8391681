"""`up`: the embedded S3 server, the Prefect server and its worker, started in this order.

Each step looks first whether its service already runs and answers, so that a second `up` changes nothing and an `up`
after a half-finished one, or after a crash of one service, starts just what is missing.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

from infra.commands import prefect_command, s3_command, worker_command, worker_name
from infra.daemon import Daemon, DaemonCommand, died, has_its_port, is_alive, start_daemon, stop_daemon
from infra.environment import POOL, client_environment, own_environment
from infra.health import is_prefect_healthy, is_s3_answering
from infra.running import (
    Running,
    environment,
    exclusive,
    forget_keys,
    new_keys,
    read_keys,
    read_running,
    write_running,
)
from tasks.errors import CommandError, RecipeError
from tasks.process.ports import LOOPBACK, free_port, is_port_taken
from tasks.recipe.settings import PROJECT_ROOT

PREFECT_PORT = 4200  # the usual ones, when nobody has them
S3_PORT = 9000
START_LIMIT_S = 180.0  # the first start of Prefect writes its database and its pages
BUCKET_LIMIT_S = 10.0
POLL_S = 0.1


@dataclass(frozen=True)
class UpRequest:
    """What to start. s3_endpoint: a server of the person's own, which is used as it is and never started or stopped."""

    home: Path
    bucket: str = "draftworks"
    s3_endpoint: str | None = None
    prefect_port: int | None = None
    s3_port: int | None = None
    project: Path = PROJECT_ROOT
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)


def up(request: UpRequest) -> Running:
    """Return the running services; start those that do not run.

    Raises CommandError: one of them died or did not answer in time (the others stay up; `down` stops them).
    RecipeError: a port that was asked for is taken.
    """
    with exclusive(request.home):
        running = read_running(request.home) or Running()
        _require_same_ports(request, running)
        if is_up(running):
            _require_same_store(request, running)
            if running.registered == registration_digest(request.project):
                return running
        running = _ensure_s3(request, running)
        running = _ensure_prefect(request, running)
        return _ensure_worker(request, running)


def registration_digest(project: Path) -> str:
    """Return the digest of all that a deployment's form is made from; another digest means: register again."""
    files = [project / "deployments" / "prefect.yaml", *project.glob("deployments/recipes/*.toml")]
    files += [*project.glob("flows/*.py"), *project.glob("tasks/recipe/*.py")]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)]
    return hashlib.sha256(" ".join([str(project), *digests]).encode()).hexdigest()


def is_up(running: Running) -> bool:
    """Return whether every service runs and answers."""
    return (
        running.prefect is not None
        and running.worker is not None
        and is_alive(running.worker)
        and _is_prefect_up(running)
        and (running.s3 is None or _is_s3_up(running))
    )


def _is_s3_up(running: Running) -> bool:
    s3 = running.s3
    return s3 is not None and is_alive(s3) and has_its_port(s3) and is_s3_answering(running.s3_endpoint)


def _is_prefect_up(running: Running) -> bool:
    prefect = running.prefect
    return prefect is not None and is_alive(prefect) and has_its_port(prefect) and is_prefect_healthy(running.api_url)


def _ensure_s3(request: UpRequest, running: Running) -> Running:
    own = request.s3_endpoint
    if own and not (running.s3 and own == running.s3_endpoint):
        if running.s3:
            stop_daemon(running.s3)
        forget_keys(request.home)
        return running.model_copy(update={"s3": None, "s3_endpoint": own})
    if _is_s3_up(running):
        return running
    if running.s3:
        stop_daemon(running.s3)
    port = _choose_port(request.s3_port, running.s3, S3_PORT, "--s3-port")
    command = s3_command(request.home, port, read_keys(request.home) or new_keys(request.home))
    endpoint = f"http://{LOOPBACK}:{command.port}"
    daemon = start_daemon(command)
    running = running.model_copy(update={"s3": daemon, "s3_endpoint": endpoint})
    write_running(request.home, running)
    _wait_for(lambda: _is_s3_up(running), daemon, command)
    _make_bucket(f"{endpoint}/{request.bucket}")
    request.say(f"s3 at {endpoint}, data in {command.argv[-1]}")
    return running


def _make_bucket(url: str) -> None:
    """Make the bucket of the embedded server; anywhere else a bucket is somebody's decision."""
    answer = httpx.put(url, timeout=BUCKET_LIMIT_S, trust_env=False)
    if answer.status_code not in (httpx.codes.OK, httpx.codes.CONFLICT):
        raise CommandError(f"the embedded S3 server refused to make {url}: {answer.status_code} {answer.text}")


def _ensure_prefect(request: UpRequest, running: Running) -> Running:
    if _is_prefect_up(running):
        return running
    before = running.prefect
    if before:
        stop_daemon(before)
    command = prefect_command(request.home, _choose_port(request.prefect_port, before, PREFECT_PORT, "--port"))
    api_url = f"http://{LOOPBACK}:{command.port}/api"
    daemon = start_daemon(command)
    running = running.model_copy(update={"prefect": daemon, "api_url": api_url})
    write_running(request.home, running)
    _wait_for(lambda: _is_prefect_up(running), daemon, command)
    request.say(f"prefect at {running.ui_url}")
    return running


def _ensure_worker(request: UpRequest, running: Running) -> Running:
    """Start the worker unless the one that runs has the right addresses; register the deployments."""
    from infra import pool  # seconds to import, and a second `up` does without

    client_env = _client_environment(request, running)
    worker = running.worker if running.client_env == client_env else None
    if running.worker and not (worker and is_alive(worker)):
        stop_daemon(running.worker)
        worker = None
    running = running.model_copy(update={"client_env": client_env, "worker": worker})
    command = worker_command(request.home, client_env, read_keys(request.home))
    since = datetime.now(UTC)
    with pool.connect(client_env["PREFECT_API_URL"]) as client:
        pool.ensure_pool(client)
        for run in pool.reconcile(client):
            request.say(f"run {run} had lost its process: marked as crashed")
        worker = worker or start_daemon(command)
        running = running.model_copy(update={"worker": worker})
        write_running(request.home, running)
        pool.deploy(request.project, {**own_environment(), **environment(request.home)})
        pool.ensure_zombie_automation(client)
        _wait_for(lambda: pool.is_worker_online(client, worker_name(), since), worker, command)
    running = running.model_copy(update={"registered": registration_digest(request.project)})
    write_running(request.home, running)
    request.say(f"worker of the pool {POOL}, deployments registered")
    return running


def _client_environment(request: UpRequest, running: Running) -> dict[str, str]:
    assert running.api_url is not None and running.s3_endpoint is not None
    store = {"DRAFTWORKS_S3_ENDPOINT": running.s3_endpoint, "DRAFTWORKS_S3_BUCKET": request.bucket}
    if running.s3:
        # The embedded server shows an object to any browser on this machine.
        store["DRAFTWORKS_S3_BROWSER_URL"] = f"{running.s3_endpoint}/{{bucket}}/{{key}}"
    return {**client_environment(request.home, running.api_url), **store}


def _require_same_ports(request: UpRequest, running: Running) -> None:
    for daemon, port, option in (
        (running.prefect, request.prefect_port, "--port"),
        (running.s3, request.s3_port, "--s3-port"),
    ):
        if port and daemon and daemon.port != port and is_alive(daemon):
            raise RecipeError(
                f"{option} {port}: {daemon.name} already runs on port {daemon.port}. Run `draftworks down` first."
            )


def _require_same_store(request: UpRequest, running: Running) -> None:
    if request.s3_endpoint and request.s3_endpoint != running.s3_endpoint:
        raise RecipeError(
            f"DRAFTWORKS_S3_ENDPOINT is {request.s3_endpoint}, but the running services use {running.s3_endpoint}. "
            "Run `draftworks down` first."
        )


def _choose_port(asked: int | None, before: Daemon | None, usual: int, option: str) -> int:
    if asked and is_port_taken(asked):
        raise RecipeError(
            f"{option} {asked}: another program listens on {LOOPBACK}:{asked}. Stop it, or choose another port."
        )
    for port in (asked, before.port if before else None, usual):
        if port and not is_port_taken(port):
            return port
    return free_port()


def _wait_for(is_ready: Callable[[], bool], daemon: Daemon, command: DaemonCommand) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while True:
        if not is_alive(daemon):
            raise died(command)
        if is_ready():
            return
        if time.monotonic() > limit:
            raise CommandError(
                f"{command.name} runs but did not answer within {START_LIMIT_S:.0f} s. See {command.log_path}."
            )
        time.sleep(POLL_S)
