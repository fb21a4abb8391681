"""The services that the pipeline tests share: started once by `draftworks up`, stopped by `draftworks down`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.target import ensure_target
from tasks.process.ports import free_port
from tasks.recipe.settings import load_settings
from tests.pipeline.services import Server, draftworks, processes_below, write_prompts


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a home with running services; afterwards nothing of them may be left."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "targets").symlink_to(ensure_target(load_settings().targets_dir).parent)
    ports = ("--port", str(free_port()), "--s3-port", str(free_port()))
    started = draftworks(folder, "up", *ports, timeout_s=300)
    assert started.returncode == 0, started.stdout + started.stderr
    yield folder
    stopped = draftworks(folder, "down", timeout_s=120)
    assert stopped.returncode == 0, stopped.stderr
    assert processes_below(folder) == []
    assert not (folder / "run").exists()


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    """Give the Prefect server of the shared services."""
    found = Server(home)
    yield found
    found.close()


@pytest.fixture(scope="session")
def incoming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder where prompts arrive, with the first day's prompts in it."""
    folder = tmp_path_factory.mktemp("incoming")
    write_prompts(folder / "monday.jsonl", 0, 24)
    return folder
