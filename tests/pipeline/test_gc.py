"""Guards a rerun after `draftworks gc`, with the real stages in a real flow: it neither extracts nor trains again."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.running import environment
from tasks.recipe.settings import PROJECT_ROOT
from tasks.store.objects import ObjectStore, StoreLocation, connect
from tests.pipeline.services import draftworks, environment_of_a_person, last_json
from tests.unit.productions import make_planned, small_plan

PREFIX = "after-gc"  # beside what the other tests made
RERUN = """
from prefect import flow
from tasks.extract import extract
from tasks.inuse import in_use
from tasks.store.claims import leased
from tasks.stage import open_artifacts
from tasks.recipe.settings import load_settings
from tasks.train import train
from tests.unit.productions import small_plan

recipe, plan = small_plan()

@flow
def rerun():
    with in_use(plan):
        print("in use:", len(leased(open_artifacts(load_settings()).store)))
        return [extract(recipe, plan), train(recipe, plan)]

for done in rerun():
    print(done.ref.kind, done.reused, done.not_needed)
"""


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Give the store of the shared services, below a prefix of its own."""
    variables = environment(home)
    for name, value in variables.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    yield connect(StoreLocation(variables["DRAFTWORKS_S3_ENDPOINT"], variables["DRAFTWORKS_S3_BUCKET"], PREFIX))


def test_a_rerun_after_gc_makes_nothing_again(home: Path, store: ObjectStore) -> None:
    _, plan = small_plan()
    make_planned(store, plan)
    shown = draftworks(home, "gc", "--json", DRAFTWORKS_S3_PREFIX=PREFIX)
    assert shown.returncode == 0, shown.stderr
    assert [row["rule"] for row in last_json(shown)["removals"]] == ["states"]
    done = draftworks(home, "gc", "--yes", "--json", DRAFTWORKS_S3_PREFIX=PREFIX)
    assert last_json(done)["deleted"] and list(store.list("states/")) == []
    before = {key for key, _ in store.list() if not key.startswith("leases/")}
    variables = {**environment(home), "DRAFTWORKS_HOME": str(home), "DRAFTWORKS_S3_PREFIX": PREFIX}
    rerun = subprocess.run(
        [sys.executable, "-c", RERUN],
        env={**environment_of_a_person(), **variables, "PYTHONPATH": os.fspath(PROJECT_ROOT)},
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert rerun.returncode == 0, rerun.stdout + rerun.stderr
    assert "states True not needed: draft/" in rerun.stdout
    assert "draft True None" in rerun.stdout
    assert f"in use: {len(plan.links) + 2}" in rerun.stdout  # with the champion, and the run's own marker
    assert {key for key, _ in store.list() if not key.startswith("leases/")} == before
    assert list(store.list("leases/run/")) == []
