"""What a run reads and makes, marked in the store while the run lasts, so that `draftworks gc` leaves it alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tasks.recipe.plan import STAGE_VERSIONS, Plan
from tasks.recipe.settings import load_settings
from tasks.stage import open_artifacts
from tasks.store.artifact import ArtifactRef
from tasks.store.lease import hold_marker

# What an input of an artifact is called -> its kind, where that is not the name itself.
OTHER_NAMES = {"champion": "draft"}


def refs_of(inputs: Mapping[str, str]) -> tuple[ArtifactRef, ...]:
    """Return the artifacts among the inputs of an artifact; prompt sets are none."""
    named = ((OTHER_NAMES.get(name, name), fingerprint) for name, fingerprint in inputs.items())
    return tuple(ArtifactRef(kind=kind, fingerprint=value) for kind, value in named if kind in STAGE_VERSIONS)


def refs_of_plan(plan: Plan) -> tuple[ArtifactRef, ...]:
    """Return every artifact that a production reads or makes, the champion included."""
    own = [ArtifactRef(kind=kind, fingerprint=link.fingerprint) for kind, link in plan.links.items()]
    read = [ref for link in plan.links.values() for ref in refs_of(link.inputs)]
    return tuple(dict.fromkeys([*own, *read]))


@contextmanager
def in_use(plan: Plan) -> Iterator[None]:
    """Keep everything of a plan in use, also between its stages; a killed run's marker runs out by itself."""
    with hold_marker(open_artifacts(load_settings()).store, refs_of_plan(plan)):
        yield
