"""One production on its way, seen from outside: its run in Prefect, and its objects in the S3 server's data folder."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tasks.recipe.settings import PROJECT_ROOT
from tests.pipeline.services import FINAL_STATES, Server, draftworks, environment_of_a_person

KINDS = ("corpus", "states", "vocabulary", "draft", "verdict", "measurement", "package")
# The stages that store parts, and what they make.
KIND_OF = {"generate": "corpus", "extract": "states", "train": "draft"}
FINISHED = 1000  # as many parts as nobody asks for
LIMIT_S = 600.0
POLL_S = 0.1


def write_recipe(recipe: dict[str, Any], path: Path) -> Path:
    """Write a recipe as TOML: its values are text, numbers, lists and small tables, and null means left out."""
    lines = [f"name = {json.dumps(recipe['name'])}"]
    for section, values in recipe.items():
        if isinstance(values, dict):
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if _is_plain(value)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _is_plain(value: object) -> bool:
    return value is not None and not isinstance(value, dict)


def wait_for(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Return when a condition holds."""
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(POLL_S)


@dataclass
class Production:
    """One recipe on its way to a draft, by `draftworks produce` or through the worker."""

    home: Path
    recipe: dict[str, Any]
    folder: Path
    by_worker: bool = False
    kept: dict[str, int] = field(default_factory=dict)
    """What was stored when a kill came, by path with its write time: none of it may be made again."""
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds that the parts stored then had taken, by kind: they belong to the cost of the artifact."""

    def __post_init__(self) -> None:
        """Write the recipe; look up the fingerprints that it must end with."""
        self.path = write_recipe(self.recipe, self.folder / "recipe.toml")
        said = draftworks(self.home, "doctor", "--explain", str(self.path), "--json")
        assert said.returncode == 0, said.stderr
        rows = json.loads(said.stdout.strip().splitlines()[-1])["artifacts"]
        self.fingerprints = {row["kind"]: row["fingerprint"] for row in rows}
        self.bucket = self.home / "s3" / "draftworks"
        self.server = Server(self.home)
        self.scratch = self.home / "scratch"
        self.logs: list[Path] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.run = ""

    def start(self) -> None:
        """Start the recipe (again); return when its run exists."""
        if self.by_worker:
            self.run = self.server.start("produce-draft", {"recipe": self.recipe})
            return
        before = {run["id"] for run in self._newest_runs()}
        self.logs.append(self.folder / f"run-{len(self.logs)}.log")
        with self.logs[-1].open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("draftworks"), "produce", str(self.path), "--json"],
                env={
                    **environment_of_a_person(),
                    "DRAFTWORKS_HOME": str(self.home),
                    "DRAFTWORKS_SCRATCH": str(self.scratch),
                },
                cwd=PROJECT_ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for(lambda: {run["id"] for run in self._newest_runs()} - before, 60, "the run never began")
        (self.run,) = {run["id"] for run in self._newest_runs()} - before

    def _newest_runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.post(
            "/flow_runs/filter",
            {"sort": "START_TIME_DESC", "limit": 5, "flow_runs": {"start_time": {"is_null_": False}}},
        )
        return found

    def is_over(self) -> bool:
        """Return whether the run has ended, by its own doing or not."""
        if self.process is not None:
            return self.process.poll() is not None
        return self.server.state(self.run) in FINAL_STATES

    def running_stage(self) -> tuple[str, float] | None:
        """Return the stage under way and when it began (seconds since the epoch); None between two."""
        running = [(name, began) for name, state, began in self._tasks() if state == "RUNNING"]
        return (running[0][0], datetime.fromisoformat(running[0][1]).timestamp()) if running else None

    def _tasks(self) -> list[tuple[str, str, str]]:
        tasks = self.server.post("/task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [self.run]}}})
        return [(task["name"].rsplit("-", 1)[0], task["state_type"], task["start_time"]) for task in tasks]

    def wait_for_stage(self, stage: str) -> None:
        """Return when a stage has begun; short ones may be over by then."""

        def has_begun() -> bool:
            begun = {name for name, state, _ in self._tasks() if state not in ("SCHEDULED", "PENDING")}
            return stage in begun or self.is_over()

        wait_for(has_begun, LIMIT_S, f"{stage} never began")
        assert not self.is_over(), f"the run ended before {stage}: {self.said()}"

    def said(self) -> str:
        """Return the end of what the newest run printed."""
        return self.logs[-1].read_text(errors="replace")[-6000:] if self.logs else self.server.logs(self.run)

    def listed(self) -> dict[str, int]:
        """Return by path the write time of every object that a manifest or a part manifest of this recipe lists."""
        found: dict[str, int] = {}
        for kind, fingerprint in self.fingerprints.items():
            folder = self.bucket / kind / fingerprint
            for manifest in (*folder.glob("parts/*.json"), *folder.glob("manifest.json")):
                with suppress(FileNotFoundError):  # a part is forgotten when its artifact is finished
                    for entry in json.loads(manifest.read_text())["files"]:
                        path = folder / entry["path"]
                        found[path.relative_to(self.bucket).as_posix()] = path.stat().st_mtime_ns
        return found

    def parts(self, stage: str) -> int:
        """Return how many parts of a stage's artifact are stored; FINISHED when it is done."""
        kind = KIND_OF.get(stage)
        if kind is None:
            return 0
        folder = self.bucket / kind / self.fingerprints[kind]
        return FINISHED if (folder / "manifest.json").exists() else len(list(folder.glob("parts/*.json")))

    def part_seconds(self) -> dict[str, float]:
        """Return what the stored parts of unfinished artifacts took, by kind."""
        found: dict[str, float] = {}
        for kind in KIND_OF.values():
            for part in (self.bucket / kind / self.fingerprints[kind]).glob("parts/*.json"):
                with suppress(FileNotFoundError):
                    found[kind] = found.get(kind, 0.0) + json.loads(part.read_text())["facts"]["seconds"]
        return found

    def has_failed(self) -> bool:
        """Return whether the run is over without a draft."""
        if not self.is_over():
            return False
        return self.process.returncode != 0 if self.process is not None else self.server.state(self.run) != "COMPLETED"

    def finish(self) -> None:
        """Wait for the end; require exactly the planned artifacts, finished, and nothing else beside them."""
        wait_for(self.is_over, LIMIT_S, f"the run did not end: {self.said()}")
        assert not self.has_failed(), self.said()
        now = self.listed()
        for path, written in self.kept.items():
            assert now.get(path, written) == written, f"{path} was made again"
        for kind in KINDS:
            folder = self.bucket / kind / self.fingerprints[kind]
            manifest = json.loads((folder / "manifest.json").read_text())
            assert manifest["fingerprint"] == self.fingerprints[kind]
            assert manifest["cost"]["seconds"] >= self.spent.get(kind, 0.0)
            there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
            assert there == {entry["path"] for entry in manifest["files"]} | {"manifest.json"}
        self.server.close()
