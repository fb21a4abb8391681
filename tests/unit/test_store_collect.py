"""Guards how gc removes: nothing that a run uses or that is foreign, half-done never counts as done, races are lost."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import StoreError, StoreRefused
from tasks.recipe.plan import Kind
from tasks.recipe.settings import PROJECT_ROOT
from tasks.store.artifacts import Artifacts
from tasks.store.claims import leased
from tasks.store.collect import IN_USE, Outcome, carry_out
from tasks.store.inventory import take_inventory
from tasks.store.lease import hold_lease, hold_marker
from tasks.store.objects import ObjectStore
from tasks.store.pointers import Pointer, Pointers
from tasks.store.retention import Policy, Removals, plan_removals
from tests.faults.proxy import Fault, Request, fault_proxy
from tests.faults.servers import credentials, localbucket, moto, open_store
from tests.unit.productions import PARENTS, Folder, Production, half_made, ref

DAY = Policy()
HOLDER = """
import sys
from tasks.store.artifact import ArtifactRef
from tasks.store.lease import hold_marker
from tasks.store.objects import StoreLocation, connect
endpoint, bucket, prefix, ttl_s, *used = sys.argv[1:]
refs = [ArtifactRef(kind=kind, fingerprint=value) for kind, value in (name.split("/") for name in used)]
with hold_marker(connect(StoreLocation(endpoint, bucket, prefix)), refs, ttl_s=float(ttl_s)):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("localbucket")


@pytest.fixture(scope="module")
def endpoint(data: Path) -> Iterator[str]:
    with credentials(), localbucket(data) as url:
        yield url


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(endpoint, f"collect/{request.node.originalname}")


@pytest.fixture
def folder(store: ObjectStore, data: Path) -> Folder:
    return Folder(store, data / "data")


def planned(store: ObjectStore, policy: Policy = DAY) -> Removals:
    return plan_removals(take_inventory(store), policy)


def gone(store: ObjectStore, policy: Policy = DAY) -> set[tuple[str, str]]:
    """Carry the plan out; return rule and name of what was removed."""
    outcomes = list(carry_out(store, planned(store, policy).removals))
    return {(done.removal.rule, done.removal.what) for done in outcomes if done.kept_because is None}


def finished(store: ObjectStore, production: Production) -> set[Kind]:
    return {kind for kind in PARENTS if Artifacts(store).find(production.ref(kind))}


def promote(store: ObjectStore, *productions: Production) -> None:
    """Make the last one the champion, the others its predecessors, as the stage release does."""
    history = tuple({"draft": one.ref("draft").fingerprint, "replaced": None} for one in productions)
    Pointers(store).move("t", Pointer(current=productions[-1].ref("draft"), history=history), None, single_writer=True)


def test_hidden_states_go_once_a_draft_of_them_passed(store: ObjectStore, folder: Folder) -> None:
    made = Production("a").make(store)
    before = folder.stored()
    (removal,) = planned(store).removals
    assert (removal.rule, removal.what) == ("states", str(made.ref("states")))
    assert removal.num_bytes > 1000 and str(made.ref("draft")) in removal.why
    assert folder.stored() == before, "a plan deletes nothing"
    assert gone(store) == {("states", str(made.ref("states")))}
    assert {key.split("/")[0] for key in before - folder.stored()} == {"states"}
    assert planned(store).removals == ()


def test_what_no_manifest_lists_goes(store: ObjectStore, folder: Folder) -> None:
    made = Production("a").make(store, "states")
    half_made(store, made.ref("draft"))
    folder.age(25)
    store.put_bytes(made.ref("draft").prefix + "epochs/1/young.pt", b"young")
    (removal,) = planned(store).removals
    assert (removal.rule, removal.what) == ("left over", f"{made.ref('draft')}: 2 objects")
    assert gone(store) == {(removal.rule, removal.what)}
    left = {key.rsplit("/", 1)[1] for key in folder.stored() if key.startswith("draft/")}
    assert left == {"data.bin", "manifest.json", "young.pt"}


def test_when_it_is_not_known_what_is_referred_to_nothing_counts_as_unreferenced(
    store: ObjectStore, folder: Folder
) -> None:
    made = Production("a").make(store, "states", "package", "release")
    newer = ref("package", "newer")
    store.put_bytes(newer.prefix + "manifest.json", b'{"format_version":99,"layout":"other"}\n')
    half_made(store, ref("corpus", "old"))
    folder.age(30)
    half_made(store, ref("states", "made from what?"))
    plan = planned(store)
    assert [removal.rule for removal in plan.removals] == ["unfinished"]
    assert len(plan.notes) == 2
    assert str(newer) in plan.notes[0] and "upgrade" in plan.notes[0]
    gone(store)
    assert {"draft", "corpus"} <= finished(store, made)
    assert store.size(newer.prefix + "manifest.json")


def test_a_pointer_of_a_newer_version_stops_everything(store: ObjectStore) -> None:
    store.put_bytes("champions/t.json", b'{"format_version":99}\n')
    with pytest.raises(StoreError, match="upgrade Draftworks"):
        take_inventory(store)


def test_foreign_objects_are_never_touched(store: ObjectStore, folder: Folder) -> None:
    foreign = {
        "prompts/monday.jsonl",
        "corpus/notes.txt",
        "corpus/abc/rows.parquet",
        f"weights/{'a' * 64}/model.safetensors",
        "package/README.md",
    }
    for key in foreign:
        store.put_bytes(key, b"mine")
    folder.age(1000)
    assert gone(store, Policy(keep_runs=0, older_than_s=0)) == set()
    assert folder.stored() == foreign


def test_what_a_running_lease_holds_or_uses_stays(store: ObjectStore, folder: Folder) -> None:
    made, unfinished = Production("a").make(store), ref("draft", "second")
    half_made(store, unfinished)
    folder.age(1000)
    nothing = Policy(keep_runs=0)
    with hold_lease(store, unfinished, uses=[made.ref("states"), made.ref("corpus")]):
        assert set(leased(store)) == {unfinished, made.ref("states"), made.ref("corpus")}
        assert {what for _, what in gone(store, nothing)}.isdisjoint(map(str, leased(store)))
    assert {"corpus", "states"} <= finished(store, made)


def test_what_a_run_in_another_process_uses_stays_until_its_marker_ran_out(
    store: ObjectStore, folder: Folder, endpoint: str
) -> None:
    made = Production("a").make(store, "verdict", "measurement", "package", "release")
    folder.age(1000)
    used = [f"{kind}/{made.ref(kind).fingerprint}" for kind in ("corpus", "states", "vocabulary", "draft")]
    where = store.location
    argv = [sys.executable, "-c", HOLDER, endpoint, where.bucket, where.prefix, "4", *used]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert planned(store, Policy(keep_runs=0)).removals == ()
    finally:
        holder.kill()
        holder.communicate()
    assert planned(store).removals == (), "the marker of a killed run still counts"
    folder.age(1, "leases/run")
    rules = {rule for rule, _ in gone(store)}
    assert rules == {"marker", "unreferenced"}
    assert list(store.list("leases/run/")) == []
    assert finished(store, made) == set()


def test_a_marker_is_there_while_the_run_lasts(store: ObjectStore) -> None:
    used = [ref("draft", "a")]
    with hold_marker(store, used):
        assert used[0] in leased(store)
        assert take_inventory(store).markers == ()
    assert leased(store) == []
    assert list(store.list("leases/")) == []


def test_a_lease_that_cannot_be_read_stops_everything(store: ObjectStore) -> None:
    store.put_bytes(f"leases/run/{'a' * 64}/00000001.json", b'{"hol')
    with pytest.raises(StoreError, match="what that run uses is not known"):
        take_inventory(store)


def test_a_run_that_began_after_the_plan_keeps_its_artifacts(store: ObjectStore, folder: Folder) -> None:
    made = Production("a").make(store)
    plan = planned(store)
    with hold_marker(store, [made.ref("states")]):
        assert list(carry_out(store, plan.removals)) == [Outcome(plan.removals[0], IN_USE)]
    with hold_lease(store, made.ref("states")):
        assert list(carry_out(store, plan.removals)) == [Outcome(plan.removals[0], IN_USE)]
    promote(store, made)
    assert "states" in finished(store, made)
    assert [done.kept_because for done in carry_out(store, plan.removals)] == [None]


def test_a_draft_that_became_champion_after_the_plan_stays(store: ObjectStore, folder: Folder) -> None:
    made = Production("a").make(store, "states")
    folder.age(30)
    plan = planned(store, Policy(keep_runs=0))
    promote(store, made)
    kept = {done.removal.ref: done.kept_because for done in carry_out(store, plan.removals)}
    assert kept[made.ref("draft")] == "it became a champion meanwhile"


def is_delete(request: Request) -> bool:
    return request.method == "DELETE" or (request.method == "POST" and request.path.endswith("?delete"))


def test_a_run_that_begins_while_the_manifest_is_deleted_gets_it_back(
    store: ObjectStore, endpoint: str, request: pytest.FixtureRequest
) -> None:
    made = Production("a").make(store)
    marker = hold_marker(store, [made.ref("states")])

    def begin(seen: Request) -> Fault | None:
        if is_delete(seen) and "manifest.json" in seen.path:
            marker.__enter__()
        return None

    with fault_proxy(endpoint, begin) as proxy:
        through = open_store(proxy.endpoint, store.location.prefix)
        assert [done.kept_because for done in carry_out(through, planned(store).removals)] == [IN_USE]
    assert "states" in finished(store, made)
    marker.__exit__(None, None, None)


def test_an_interrupted_gc_leaves_nothing_that_counts_as_done(
    store: ObjectStore, folder: Folder, endpoint: str
) -> None:
    made = Production("a").make(store)
    manifest_is_gone = False

    def refuse_the_rest(seen: Request) -> Fault | None:
        nonlocal manifest_is_gone
        if manifest_is_gone and is_delete(seen):
            return Fault("answer", status=403, code="AccessDenied")
        manifest_is_gone = manifest_is_gone or (is_delete(seen) and seen.path.endswith("manifest.json"))
        return None

    with fault_proxy(endpoint, refuse_the_rest) as proxy:
        through = open_store(proxy.endpoint, store.location.prefix)
        with pytest.raises(StoreRefused):
            list(carry_out(through, planned(store).removals))
    assert any(key.startswith("states/") for key in folder.stored()), "it was interrupted after the manifest"
    assert "states" not in finished(store, made)
    assert gone(store) == {("states", str(made.ref("states")))}
    assert not any(key.startswith("states/") for key in folder.stored())


def test_unfinished_uploads_of_ours_are_aborted(tmp_path: Path) -> None:
    import boto3

    with credentials(), moto(tmp_path) as endpoint:
        store = open_store(endpoint, "retention")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        keys = [f"retention/{ref('states', 'a').prefix}0.bin", f"retention/{ref('states', 'b').prefix}0.bin"]
        for key in (*keys, "retention/prompts/mine.bin", f"elsewhere/{ref('states', 'a').prefix}0.bin"):
            client.create_multipart_upload(Bucket="store-tests", Key=key)
        with hold_marker(store, [ref("states", "b")]):
            assert planned(store, Policy(older_than_s=1e10)).removals == ()
            (removal,) = planned(store).removals  # to moto every upload began in 2010
            assert removal.rule == "upload" and str(ref("states", "a")) in removal.what
            assert gone(store) == {("upload", removal.what)}
        left = client.list_multipart_uploads(Bucket="store-tests")["Uploads"]
        assert {upload["Key"] for upload in left} == {
            keys[1],
            "retention/prompts/mine.bin",
            f"elsewhere/{ref('states', 'a').prefix}0.bin",
        }
        client.close()
