"""The work pool in Prefect: created, its deployments registered, its dead runs found and marked as crashed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, WorkPoolFilter
from prefect.client.schemas.filters import WorkPoolFilterName as PoolName
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Cancelled, Cancelling, Crashed
from prefect.workers.process import ProcessWorker

from infra.environment import HEARTBEAT_S, POOL
from tasks.errors import CommandError

POOL_SLOTS = 1  # one GPU: one run at a time, whichever deployment it comes from
DEPLOYMENTS = "deployments/prefect.yaml"
ZOMBIE_AUTOMATION = "Crash flow runs whose heartbeat has stopped"
MISSED_HEARTBEATS = 6  # a busy machine may be late; a dead run may hold its slot for three minutes
RUN_ID = "PREFECT__FLOW_RUN_ID"
ACTIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
POLL_S = 0.5
DEPLOY_LIMIT_S = 180.0
DOWN_MESSAGE = "Cancelled by `draftworks down`. Run it again: done work is reused."
CRASH_MESSAGE = (
    "Its process is gone: the worker was stopped or the machine went down. Run it again: done work is reused."
)


@contextmanager
def connect(api_url: str) -> Iterator[SyncPrefectClient]:
    """Give a client of that server. Raises CommandError: it stopped answering, or refused."""
    try:
        # No proxy stands between this machine and itself.
        with SyncPrefectClient(api_url, httpx_settings={"trust_env": False}) as client:
            yield client
    except httpx.HTTPError as error:
        raise CommandError(
            f"the Prefect server at {api_url} did not do what it was asked: {error}. "
            "`draftworks doctor` says what is wrong with it."
        ) from error


def ensure_pool(client: SyncPrefectClient) -> None:
    """Make the work pool if it is missing; set its limit either way."""
    template = ProcessWorker.get_default_base_job_template()
    try:
        client.create_work_pool(
            WorkPoolCreate(name=POOL, type="process", concurrency_limit=POOL_SLOTS, base_job_template=template)
        )
    except ObjectAlreadyExists:
        client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=POOL_SLOTS))


def deploy(project: Path, env: dict[str, str]) -> None:
    """Register the deployments of the project. Raises CommandError with Prefect's own words."""
    # From the root: entrypoints are relative to the working folder, which becomes that of the runs.
    ended = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", DEPLOYMENTS, "--all"],
        cwd=project,
        env={**env, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=DEPLOY_LIMIT_S,
        check=False,
    )
    if ended.returncode:
        tail = "\n".join((ended.stdout + ended.stderr).splitlines()[-15:])
        raise CommandError(f"Prefect refused {project / DEPLOYMENTS}; the last lines are", ended.returncode, tail)


def ensure_zombie_automation(client: SyncPrefectClient) -> None:
    """Create or update the rule that crashes a run of the pool when its heartbeat stops; exactly one of that name.

    One that is right already stays untouched: an update forgets the runs that it watches, and one of them that dies
    before its next heartbeat would stay Running for ever.
    """
    wanted = AutomationCore(
        name=ZOMBIE_AUTOMATION,
        description="A run that was killed together with its worker would stay Running and hold the only slot.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * HEARTBEAT_S),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="No heartbeat: its process is gone.")],
    )
    same_name = client.read_automations_by_name(ZOMBIE_AUTOMATION)
    if not same_name:
        client.create_automation(wanted)
    elif _rule(same_name[0]) != _rule(wanted):
        client.update_automation(same_name[0].id, wanted)
    for surplus in same_name[1:]:
        client.delete_automation(surplus.id)


def _rule(automation: AutomationCore) -> dict[str, Any]:
    """Return what an automation does, without the ids that each writing draws anew."""
    rule = automation.model_dump(mode="json", include={"description", "enabled", "trigger", "actions"})
    rule["trigger"].pop("id", None)
    return rule


def active_runs(client: SyncPrefectClient) -> list[FlowRun]:
    """Return the runs of the pool that claim to be under way."""
    runs: list[FlowRun] = client.read_flow_runs(
        work_pool_filter=WorkPoolFilter(name=PoolName(any_=[POOL])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=ACTIVE))),
    )
    return runs


def flow_run_processes() -> dict[int, dict[str, str]]:
    """Return, by process id, the environment of every process that executes a flow run."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            raw = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue  # it ended meanwhile, or it is somebody else's
        pairs = (part.partition("=") for part in raw.decode("utf-8", errors="replace").split("\0"))
        env: dict[str, Any] = {name: value for name, _, value in pairs}
        if RUN_ID in env:
            found[int(entry)] = env
    return found


def reconcile(client: SyncPrefectClient) -> list[str]:
    """Mark active runs without a process as crashed (cancelled, if that was asked for); return their names.

    For a pool that lives on this machine only.
    """
    alive = {env[RUN_ID] for env in flow_run_processes().values()}
    dead = [run for run in active_runs(client) if str(run.id) not in alive]
    for run in dead:
        is_cancelling = run.state_type == StateType.CANCELLING
        end: State[None] = Cancelled(message=DOWN_MESSAGE) if is_cancelling else Crashed(message=CRASH_MESSAGE)
        client.set_flow_run_state(run.id, end, force=True)
    return [run.name for run in dead]


def cancel_active(client: SyncPrefectClient, limit_s: float) -> list[str]:
    """Cancel the runs under way, wait for their end, return the names of those that were running.

    The pool takes no new run meanwhile; afterwards it is as it was.
    """
    was_paused = client.read_work_pool(POOL).is_paused
    client.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))
    try:
        runs = active_runs(client)
        for run in runs:
            client.set_flow_run_state(run.id, Cancelling(message=DOWN_MESSAGE))
        limit = time.monotonic() + limit_s
        while time.monotonic() < limit and active_runs(client):
            time.sleep(POLL_S)
        return [run.name for run in runs]
    finally:
        client.update_work_pool(POOL, WorkPoolUpdate(is_paused=was_paused))


def is_worker_online(client: SyncPrefectClient, name: str, since: datetime) -> bool:
    """Return whether the worker of that name has reported to the pool since then."""
    return any(
        worker.name == name and worker.last_heartbeat_time is not None and worker.last_heartbeat_time >= since
        for worker in client.read_workers_for_work_pool(POOL)
    )
