"""Guards what is deployed: prefect.yaml, compose and the manifests load, and agree with the code."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.environment import POOL
from tasks.recipe.settings import PROJECT_ROOT

PREFECT_YAML = PROJECT_ROOT / "deployments" / "prefect.yaml"
MANIFESTS = sorted((PROJECT_ROOT / "infra" / "kubernetes").glob("*.yaml"))


def deployments() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(PREFECT_YAML.read_text())["deployments"]
    return loaded


@pytest.mark.parametrize("deployment", deployments(), ids=lambda d: str(d["name"]))
def test_a_deployment_has_one_name_everywhere(deployment: dict[str, Any]) -> None:
    module, function = deployment["entrypoint"].split(":")
    flow = getattr(importlib.import_module(module), function)
    assert flow.name == deployment["name"] == function.replace("_", "-")
    assert deployment["work_pool"]["name"] == POOL
    assert deployment["work_pool"]["job_variables"] == {"stream_output": False}


def test_the_night_has_a_time_zone_and_keeps_a_pause() -> None:
    nightly = next(d for d in deployments() if d["name"] == "retrain-nightly")
    (schedule,) = nightly["schedules"]
    assert schedule["cron"] == "0 2 * * *" and schedule["timezone"] and schedule["slug"] == "nightly"
    assert "active" not in schedule and "parameters" not in schedule
    assert nightly["concurrency_limit"]["collision_strategy"] == "CANCEL_NEW"


def test_compose_publishes_on_loopback_only() -> None:
    compose = yaml.safe_load((PROJECT_ROOT / "infra" / "compose.yml").read_text())
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for service in compose["services"].values():
        if "build" in service:
            assert (PROJECT_ROOT / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_manifests_hold_no_secret_and_one_namespace(path: Path) -> None:
    objects = list(yaml.safe_load_all(path.read_text()))
    assert objects
    for one in objects:
        assert one["metadata"]["namespace"] == "draftworks"
        assert one["kind"] != "Secret"


def test_the_servers_of_compose_are_the_pinned_ones() -> None:
    pinned = (PROJECT_ROOT / "infra" / "requirements" / "pipeline-gpu.txt").read_text().splitlines()
    version = next(line.split("==")[1] for line in pinned if line.startswith("prefect=="))
    for path in (PROJECT_ROOT / "infra" / "compose.yml", PROJECT_ROOT / "infra" / "kubernetes" / "prefect.yaml"):
        assert f"prefecthq/prefect:{version}-python3.11" in path.read_text()
