"""Guards run leases: one holder at a time, a dead one runs out by the server's clock, a lost one is noticed."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tasks.errors import PreconditionFailed
from tasks.recipe.settings import PROJECT_ROOT
from tasks.store.artifact import ArtifactRef
from tasks.store.claims import leased
from tasks.store.lease import hold_lease
from tasks.store.objects import ObjectStore
from tests.faults.servers import credentials, localbucket, open_store

REF = ArtifactRef(kind="draft", fingerprint="a" * 64)
FOLDER = f"leases/{REF.prefix}"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with credentials(), localbucket(tmp_path_factory.mktemp("localbucket")) as url:
        yield url


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(endpoint, f"lease/{request.node.originalname}")


def abandoned(store: ObjectStore, ttl_s: float) -> None:
    """Leave a lease as a holder that was killed leaves it."""
    claim = f'{{"format_version":1,"holder":"dead","released":false,"renewed":0,"ttl_s":{ttl_s}}}\n'
    store.put_bytes(f"{FOLDER}00000007.json", claim.encode())


def test_a_second_holder_is_told_who_holds_it(store: ObjectStore) -> None:
    with hold_lease(store, REF, ttl_s=30) as lease:
        lease.ensure_held()
        assert leased(store) == [REF]
        with (
            pytest.raises(PreconditionFailed, match=f"run {lease.holder} holds it"),
            hold_lease(store, REF, ttl_s=30, wait_s=0),
        ):
            pass
    assert leased(store) == []
    with hold_lease(store, REF, wait_s=0):
        pass


def test_a_second_holder_waits_its_turn(store: ObjectStore) -> None:
    order: list[str] = []
    inside = threading.Event()

    def first() -> None:
        with hold_lease(store, REF, ttl_s=2):
            inside.set()
            time.sleep(0.5)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with hold_lease(store, REF, ttl_s=2, wait_s=20):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


def test_of_many_at_once_one_holds_it_at_a_time(store: ObjectStore) -> None:
    inside, most, done = 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most, done
        with hold_lease(store, REF, ttl_s=4, wait_s=60):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.05)
            with lock:
                inside -= 1
                done += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 6)
    assert len(list(store.list(FOLDER))) == 1


def test_the_lease_of_a_dead_holder_runs_out(store: ObjectStore) -> None:
    abandoned(store, ttl_s=2)
    with pytest.raises(PreconditionFailed, match="run dead holds it"), hold_lease(store, REF, wait_s=0):
        pass
    started = time.monotonic()
    with hold_lease(store, REF, ttl_s=2, wait_s=20) as lease:
        assert 1 <= time.monotonic() - started < 10
        lease.ensure_held()
    assert [key for key, _ in store.list(FOLDER)] == [f"{FOLDER}00000008.json"]


def test_a_holder_killed_on_this_machine_is_not_waited_for(store: ObjectStore) -> None:
    code = (
        "import sys, time; from tests.unit.test_store_lease import REF, hold_lease, open_store; "
        "held = hold_lease(open_store(*sys.argv[1:]), REF, ttl_s=600); held.__enter__(); print('held', flush=True); "
        "time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(store.location.endpoint), store.location.prefix]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=PROJECT_ROOT) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(PreconditionFailed), hold_lease(store, REF, wait_s=0):
            pass
        holder.kill()
    with hold_lease(store, REF, wait_s=0):
        pass


def test_a_lease_is_renewed_while_it_is_held(store: ObjectStore) -> None:
    with hold_lease(store, REF, ttl_s=2) as lease:
        time.sleep(4.5)
        lease.ensure_held()
        with pytest.raises(PreconditionFailed), hold_lease(store, REF, wait_s=0):
            pass


def test_a_holder_that_was_overtaken_notices(store: ObjectStore) -> None:
    with hold_lease(store, REF, ttl_s=1) as lease:
        abandoned(store, ttl_s=60)
        time.sleep(1)
        with pytest.raises(PreconditionFailed, match="another run took it over"):
            lease.ensure_held()
    assert f"{FOLDER}00000007.json" in [key for key, _ in store.list(FOLDER)]


def test_a_lease_that_was_cut_off_counts_until_it_is_old(store: ObjectStore) -> None:
    store.put_bytes(f"{FOLDER}00000001.json", b'{"hol')
    with pytest.raises(PreconditionFailed, match="run unreadable holds it"), hold_lease(store, REF, wait_s=0):
        pass
