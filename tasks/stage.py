"""What makes a function a stage: retries on transient errors only, a small result, and the store it works on."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task, exponential_backoff
from pydantic import BaseModel, ConfigDict

from tasks.errors import TransientError
from tasks.recipe.settings import Settings
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.objects import StoreLocation, connect

P = ParamSpec("P")
R = TypeVar("R")


class Done(BaseModel):
    """A stage's result: which artifact, whether it was there already, seconds of work, and the manifest's facts.

    not_needed: why the artifact is neither there nor was made; it has no manifest and no facts then.
    """

    model_config = ConfigDict(frozen=True)

    ref: ArtifactRef
    reused: bool
    seconds: float
    facts: dict[str, Any]
    not_needed: str | None = None


def is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Tell Prefect whether a failed stage may succeed when tried again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TransientError)


def stage(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a stage: a Prefect task, retried on transient errors only.

    Prefect keeps no result of it: the manifest in the store is the only record of what is done.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return Task(
            function,
            name=name,
            retries=2,
            retry_delay_seconds=exponential_backoff(backoff_factor=5),
            retry_jitter_factor=0.5,
            retry_condition_fn=is_transient,
            cache_policy=NO_CACHE,
            persist_result=False,
        )

    return decorate


def open_artifacts(settings: Settings) -> Artifacts:
    """Return the artifacts of the configured bucket."""
    return Artifacts(
        connect(StoreLocation(settings.s3_endpoint, settings.s3_bucket, settings.s3_prefix, settings.s3_region))
    )
