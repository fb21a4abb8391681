"""A managed server for a stage: from recipe and settings to an endpoint that answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import Settings, device_of
from tasks.recipe.target import TargetModel
from tasks.serving.command import Mode, Place, ServedModel, server_command
from tasks.serving.endpoint import Endpoint
from tasks.serving.server import managed_server


@contextmanager
def launch(
    recipe: Recipe,
    settings: Settings,
    target: TargetModel,
    mode: Mode,
    log_path: Path,
    *,
    on_wait: Callable[[float], None] | None = None,
) -> Iterator[Endpoint]:
    """Serve the recipe's target in a mode for the length of a with block; see managed_server for the errors."""
    served = ServedModel(
        model=str(target.folder),
        name=target.published_name,
        trust_remote_code=recipe.target.trust_remote_code,
    )
    place = Place(settings.vllm_python, device_of(settings), settings.gpu_ids)
    command = server_command(served, mode, place, recipe.vllm)
    with managed_server(
        command,
        log_path=log_path,
        start_deadline_s=settings.server_start_s,
        run_folder=settings.scratch_dir / "servers",
        on_wait=on_wait,
    ) as endpoint:
        yield endpoint
