"""`down`: flow runs cancelled, then worker, Prefect server and S3 server stopped, and their record removed."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from infra import pool
from infra.daemon import has_its_port, is_alive, stop_daemon, wait_until_empty
from infra.health import is_prefect_healthy
from infra.running import Running, exclusive, forget_running, read_running
from tasks.process.lifeline import parents

CANCEL_LIMIT_S = 45.0  # Prefect itself waits 30 s between SIGTERM and SIGKILL
FLOW_GRACE_S = 15.0
KILL_WAIT_S = 5.0


def down(home: Path, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """Stop what `up` started from this home folder; return the names of the services that ran.

    Flow runs under way are cancelled first. Harmless when nothing is up.
    """
    if not home.is_dir():
        return []
    with exclusive(home):
        running = read_running(home)
        if running is None:
            return []
        _stop_runs(running, say)
        stopped = []
        for daemon in running.daemons():
            if daemon is running.prefect:
                _stop_flow_processes(running)
                _reconcile(running)
            if stop_daemon(daemon):
                say(f"{daemon.name} stopped")
                stopped.append(daemon.name)
        forget_running(home)
        return stopped


def _api_url(running: Running) -> str | None:
    """Return the address of the Prefect server if it is ours and answers."""
    prefect = running.prefect
    is_ours = prefect is not None and is_alive(prefect) and has_its_port(prefect)
    return running.api_url if is_ours and is_prefect_healthy(running.api_url) else None


def _stop_runs(running: Running, say: Callable[[str], None]) -> None:
    """Cancel the runs by way of their worker, and wait for it where it can do it."""
    api_url, worker = _api_url(running), running.worker
    if api_url and worker and is_alive(worker):
        orphans = [pid for pid in _flow_processes(running) if not _is_below(pid, worker.pid)]
        with pool.connect(api_url) as client:
            for run in pool.cancel_active(client, 0 if orphans else CANCEL_LIMIT_S):
                say(f"run {run} cancelled")


def _flow_processes(running: Running) -> list[int]:
    return [pid for pid, env in pool.flow_run_processes().items() if env.get("PREFECT_API_URL") == running.api_url]


def _is_below(pid: int, ancestor: int) -> bool:
    parent_of = parents()
    while pid in parent_of and pid != ancestor:
        pid = parent_of[pid]
    return pid == ancestor


def _stop_flow_processes(running: Running) -> None:
    """Stop flow runs of this server that outlived their worker. Each leads a group of its own."""
    groups = set()
    for pid in _flow_processes(running):
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    for number, seconds in ((signal.SIGTERM, FLOW_GRACE_S), (signal.SIGKILL, KILL_WAIT_S)):
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        groups = {group for group in groups if not wait_until_empty(group, seconds)}


def _reconcile(running: Running) -> None:
    if api_url := _api_url(running):
        with pool.connect(api_url) as client:
            pool.reconcile(client)
