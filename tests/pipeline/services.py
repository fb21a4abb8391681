"""What the pipeline tests drive Draftworks with: its command line, and Prefect's HTTP interface as the UI uses it."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import psutil

from tasks.recipe.recipe import load_recipe
from tasks.recipe.settings import PROJECT_ROOT

RECIPES = PROJECT_ROOT / "deployments" / "recipes"
FINAL_STATES = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def draftworks(
    home: Path, *arguments: str, timeout_s: float = 900, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a draftworks command with a home of its own, as a person would."""
    program = Path(sys.executable).with_name("draftworks")
    return subprocess.run(
        [program, *arguments],
        env={**environment_of_a_person(), "DRAFTWORKS_HOME": str(home), **variables},
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def environment_of_a_person() -> dict[str, str]:
    """Return this process's environment without anything that points at services."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DRAFTWORKS_", "AWS_"))
    }


def last_json(done: "subprocess.CompletedProcess[str]") -> Any:
    """Return the JSON object in the last line that a command printed."""
    return json.loads(done.stdout.strip().splitlines()[-1])


def processes_below(home: Path) -> list[str]:
    """Return the command lines of processes that name the home folder, in their arguments or environment."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            text = " ".join([*process.cmdline(), *process.environ().values()])
            if str(home) in text and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


class Server:
    """The Prefect server of one home, called over HTTP with the tokens that its forms use."""

    def __init__(self, home: Path) -> None:
        """Find the address that `draftworks up` wrote down."""
        running = json.loads((home / "run" / "up.json").read_text())
        self.url = str(running["api_url"])
        client = str(uuid.uuid4())
        token = httpx.get(f"{self.url}/csrf-token", params={"client": client}).json()["token"]
        headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": client}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str) -> Any:
        """Return the JSON of a GET."""
        return self._http.get(path).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of a POST."""
        return self._http.post(path, json=body).raise_for_status().json()

    def deployment(self, name: str) -> dict[str, Any]:
        """Return the deployment called as its flow."""
        found: dict[str, Any] = self.get(f"/deployments/name/{name}/{name}")
        return found

    def set_parameters(self, name: str, parameters: dict[str, Any]) -> None:
        """Change what the form of a deployment is filled with."""
        self._http.patch(
            f"/deployments/{self.deployment(name)['id']}", json={"parameters": parameters}
        ).raise_for_status()

    def start(self, name: str, parameters: dict[str, Any]) -> str:
        """Start a run of a deployment; return its id."""
        made = self.post(f"/deployments/{self.deployment(name)['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def state(self, run: str) -> str:
        """Return a run's state type."""
        return str(self.get(f"/flow_runs/{run}")["state_type"])

    def wait(self, run: str, timeout_s: float) -> str:
        """Return the final state of a run."""
        limit = time.monotonic() + timeout_s
        while (state := self.state(run)) not in FINAL_STATES:
            assert time.monotonic() < limit, f"run {run} is still {state} after {timeout_s} s"
            time.sleep(1)
        return state

    def artifacts(self, run: str) -> list[dict[str, Any]]:
        """Return the artifacts of a run, and of its tasks."""
        found: list[dict[str, Any]] = self.post(
            "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}, "limit": 200}
        )
        return found

    def logs(self, run: str) -> str:
        """Return a run's log lines."""
        lines = self.post(
            "/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
        )
        return "\n".join(line["message"] for line in lines)


def tiny(prompts: Path) -> dict[str, Any]:
    """Return a recipe whose chain takes little more than its server starts."""
    recipe = load_recipe(RECIPES / "smoke.toml").model_dump(mode="json")
    recipe["name"] = "tiny"
    recipe["prompts"] |= {"source": str(prompts), "limit": None, "newest_files": 2}
    recipe["generation"] |= {"max_tokens": 32}
    recipe["training"] |= {"epochs": 8}
    recipe["benchmark"] |= {"limit": 4, "max_tokens": 16, "concurrencies": [4], "speed_prompts": 4}
    recipe["release"] = {"single_writer": True}
    return recipe


def write_prompts(path: Path, first: int, count: int) -> None:
    words = ("tide", "lever", "comet", "enzyme", "treaty", "sonnet", "prism", "harbor")
    lines = [
        json.dumps({"id": f"night-{n}", "prompt": f"Tell me about a {words[n % len(words)]}, fact {n}."})
        for n in range(first, first + count)
    ]
    path.write_text("\n".join(lines) + "\n")
