"""Guards the rerun after gc: hidden states that are gone need not be made again, and that is said everywhere."""

from collections.abc import Iterator

import pytest

from infra.explain import explain
from tasks.inuse import refs_of_plan
from tasks.pages.pages import run_page, stage_page
from tasks.pages.report import RunReport, StageReport, summary_rows
from tasks.recipe.plan import Kind
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Cost
from tasks.store.objects import ObjectStore
from tasks.store.retention import why_not_needed
from tests.faults.servers import credentials, localbucket, open_store
from tests.unit.productions import half_made, make_planned, small_plan

RECIPE, PLAN = small_plan()
DRAFT = ArtifactRef(kind="draft", fingerprint=PLAN.fingerprint("draft"))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with credentials(), localbucket(tmp_path_factory.mktemp("localbucket")) as url:
        yield url


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(endpoint, f"not-needed/{request.node.originalname}")


def test_only_states_are_not_needed_and_only_with_a_finished_draft(store: ObjectStore) -> None:
    artifacts = Artifacts(store)
    half_made(store, DRAFT)
    assert why_not_needed(artifacts, PLAN, "states") is None
    make_planned(store, PLAN, "states")
    reason = why_not_needed(artifacts, PLAN, "states")
    assert reason is not None and reason.startswith("not needed: ") and str(DRAFT) in reason
    others: tuple[Kind, ...] = ("corpus", "vocabulary", "draft", "verdict", "measurement", "package", "release")
    assert [why_not_needed(artifacts, PLAN, kind) for kind in others] == [None] * len(others)
    store.delete([f"{DRAFT.prefix}data.bin"])
    assert why_not_needed(artifacts, PLAN, "states") is None


def test_explain_says_so(store: ObjectStore) -> None:
    make_planned(store, PLAN, "states", "package")
    rows = {row.kind: row for row in explain(PLAN, Artifacts(store))}
    assert rows["states"].is_done and rows["states"].reason.startswith("not needed")
    assert not rows["package"].is_done


def test_the_pages_say_so() -> None:
    stage = StageReport(name="states", cost=Cost(seconds=0), not_needed="not needed: draft/abc is finished")
    assert "Nothing was computed: not needed: draft/abc is finished." in stage_page(stage)
    report = RunReport(name="r", target="t", stages=(stage, StageReport(name="draft", cost=Cost(seconds=3))))
    page = run_page(report)
    assert "| states | not needed |" in page
    assert "- **states**: not needed: draft/abc is finished" in page
    assert ("stages made / reused", "1 / 1") in summary_rows(report)


def test_a_run_uses_all_that_it_makes_and_reads() -> None:
    used = refs_of_plan(PLAN)
    assert {ref.kind for ref in used} == set(PLAN.links)
    assert set(used) >= {DRAFT, ArtifactRef(kind="draft", fingerprint="d" * 64)}
    assert len(used) == len(PLAN.links) + 1
