"""Guards the GPU paths: the smoke recipe on CUDA, the connector and the trainer included."""

from pathlib import Path

import pytest

from tasks.recipe.settings import Settings, device_of
from tests.pipeline.conftest import home
from tests.pipeline.services import RECIPES, draftworks, last_json

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device_of(Settings()) != "cuda", reason="this machine has no GPU driver"),
]
__all__ = ["home"]


def test_the_whole_chain_runs_on_a_gpu(home: Path) -> None:  # noqa: F811
    done = draftworks(home, "produce", str(RECIPES / "smoke.toml"), "--json", DRAFTWORKS_DEVICE="cuda")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert last_json(done)["acceptance_length"] > 1.0
