"""Guards `up` and `down` with the real S3 server, Prefect server and worker: started once, repaired, gone afterwards.

The tests share one home folder, because a start takes 20 seconds; each begins with `up`, which changes nothing when
all is well.
"""

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest

from infra import pool, services, shutdown
from infra.daemon import Daemon, group_members, is_alive
from infra.running import KEYS, RECORD, Running, environment, read_running, run_folder
from tasks.errors import RecipeError
from tasks.process.ports import LOOPBACK, free_port, is_port_taken

SLEEPER = """
import subprocess, sys
from prefect import flow

@flow
def sleep_long() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
"""
SLEEPER_YAML = """
name: sleeper
deployments:
  - name: sleeper
    entrypoint: napping.sleeper:sleep_long
    work_pool: {name: gpu, job_variables: {stream_output: false}}
"""
RUN_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def request_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.UpRequest]:
    home = tmp_path_factory.mktemp("home")
    yield services.UpRequest(home=home, prefect_port=free_port(), s3_port=free_port())
    shutdown.down(home)


@pytest.fixture
def running(request_up: services.UpRequest) -> Running:
    return services.up(request_up)


def wait_until(is_so: Callable[[], bool], limit_s: float = RUN_LIMIT_S) -> None:
    limit = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.2)


def kill(daemon: Daemon | None) -> None:
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(daemon))


def start_sleeper(running: Running, home: Path) -> str:
    """Return the id of a run that is under way and has a child process."""
    project = home / "project"
    (project / "napping").mkdir(parents=True, exist_ok=True)
    (project / "deployments").mkdir(exist_ok=True)
    (project / "napping" / "sleeper.py").write_text(SLEEPER)
    (project / "deployments" / "prefect.yaml").write_text(SLEEPER_YAML)
    pool.deploy(project, {**os.environ, **environment(home)})
    assert running.api_url is not None
    with pool.connect(running.api_url) as client:
        run = client.create_flow_run_from_deployment(client.read_deployment_by_name("sleep-long/sleeper").id)
        wait_until(lambda: state_name(running, str(run.id)) == "Running")
    return str(run.id)


def state_name(running: Running, run_id: str) -> str | None:
    assert running.api_url is not None
    with pool.connect(running.api_url) as client:
        return client.read_flow_run(run_id).state_name


def processes_of(run_id: str) -> list[int]:
    return [pid for pid, env in pool.flow_run_processes().items() if env[pool.RUN_ID] == run_id]


def test_all_three_answer(running: Running) -> None:
    with pool.connect(running.api_url or "") as client:
        assert {f"{d.name}" for d in client.read_deployments()} == {"produce-draft", "retrain-nightly"}
        assert client.read_work_pool("gpu").concurrency_limit == 1
        assert client.read_workers_for_work_pool("gpu")[0].status == "ONLINE"
    assert httpx.head(f"{running.s3_endpoint}/draftworks").status_code == httpx.codes.OK


def test_up_again_changes_nothing(request_up: services.UpRequest, running: Running) -> None:
    assert services.up(request_up) == running


def test_the_server_is_closed_to_other_pages(running: Running) -> None:
    evil = httpx.get(f"{running.api_url}/health", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in evil.headers
    assert httpx.post(f"{running.api_url}/flow_runs/filter", json={}).status_code == httpx.codes.FORBIDDEN
    assert httpx.get(f"{running.api_url}/admin/settings").json()["server"]["analytics_enabled"] is False


def test_keys_are_private(request_up: services.UpRequest, running: Running) -> None:
    keys_path = run_folder(request_up.home) / KEYS
    assert stat.S_IMODE(keys_path.stat().st_mode) == 0o600
    secret = json.loads(keys_path.read_text())["AWS_SECRET_ACCESS_KEY"]
    assert secret not in (run_folder(request_up.home) / RECORD).read_text()
    for daemon in running.daemons():
        assert secret not in Path(f"/proc/{daemon.pid}/cmdline").read_text()
    assert environment(request_up.home)["AWS_SECRET_ACCESS_KEY"] == secret


def test_nights_begin_at_two_local_time(running: Running) -> None:
    def nights() -> list[datetime]:
        with pool.connect(running.api_url or "") as client:
            return [run.expected_start_time for run in client.read_flow_runs() if run.state_name == "Scheduled"]

    wait_until(lambda: len(nights()) >= 3, limit_s=90)
    assert {night.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") for night in nights()} == {"02:00"}


def test_there_is_one_zombie_automation(running: Running) -> None:
    with pool.connect(running.api_url or "") as client:
        before = client.read_automations_by_name(pool.ZOMBIE_AUTOMATION)
        pool.ensure_zombie_automation(client)
        assert client.read_automations_by_name(pool.ZOMBIE_AUTOMATION) == before  # an update forgets what it watches
        assert len(before) == 1


def test_a_port_that_is_taken_is_named(request_up: services.UpRequest, running: Running, tmp_path: Path) -> None:
    taken = running.s3.port if running.s3 else None
    with pytest.raises(RecipeError, match=f"--s3-port {taken}: another program listens"):
        services.up(services.UpRequest(home=tmp_path, s3_port=taken))
    with pytest.raises(RecipeError, match="already runs on port"):
        services.up(services.UpRequest(home=request_up.home, prefect_port=free_port()))


def test_what_died_is_started_again(request_up: services.UpRequest, running: Running) -> None:
    kill(running.s3)
    repaired = services.up(request_up)
    assert services.is_up(repaired)
    assert (repaired.prefect, repaired.worker) == (running.prefect, running.worker)
    assert repaired.s3_endpoint == running.s3_endpoint


def test_a_run_without_process_is_marked_as_crashed(request_up: services.UpRequest, running: Running) -> None:
    run_id = start_sleeper(running, request_up.home)
    kill(running.worker)
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(run_id))
    assert state_name(running, run_id) == "Running"
    repaired = services.up(request_up)
    assert state_name(repaired, run_id) == "Crashed"


def test_down_cancels_and_leaves_nothing(request_up: services.UpRequest, running: Running) -> None:
    run_id = start_sleeper(running, request_up.home)
    groups = [os.getpgid(pid) for pid in processes_of(run_id)]
    said: list[str] = []
    assert shutdown.down(request_up.home, said.append) == ["worker", "prefect", "s3"]
    assert any("cancelled" in line for line in said)
    assert not processes_of(run_id)
    for group in [*groups, *(daemon.pid for daemon in running.daemons())]:
        assert not group_members(group)
    assert not is_port_taken(request_up.prefect_port or 0) and not is_port_taken(request_up.s3_port or 0)
    assert read_running(request_up.home) is None and not run_folder(request_up.home).exists()
    assert shutdown.down(request_up.home) == []


def test_a_server_of_ones_own_is_used_and_left_alone(request_up: services.UpRequest) -> None:
    own = f"http://{LOOPBACK}:{free_port()}"
    running = services.up(services.UpRequest(home=request_up.home, prefect_port=free_port(), s3_endpoint=own))
    assert running.s3 is None and running.client_env["DRAFTWORKS_S3_ENDPOINT"] == own
    assert not (run_folder(request_up.home) / KEYS).exists()
    assert shutdown.down(request_up.home) == ["worker", "prefect"]
