"""Guards the store under 1,000 provoked faults: no wrong artifact, no orphan part, every error one of ours."""

import hashlib
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.errors import ArtifactCorrupt, ArtifactMissing, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Cost, Manifest, Provenance
from tasks.store.objects import ObjectStore, Patience
from tests.faults.proxy import Fault, FaultProxy, Request, fault_proxy
from tests.faults.servers import credentials, localbucket, open_store

NUM_FAULTS = 1000
FAULT_RATE = 0.35
WORKERS = 4
LARGE_EVERY = 20  # every so many artifacts one has a file that is sent in parts
LIMIT_S = 240.0
MIB = 1024 * 1024
PART_BYTES = 5 * MIB
READ_S = 0.5
IMPATIENT = Patience(
    attempts=4,
    first_wait_s=0.002,
    longest_wait_s=0.02,
    connect_s=1,
    read_s=READ_S,
    first_contact_s=READ_S,
    part_bytes=PART_BYTES,
)
ANSWERS = [(503, "SlowDown"), (503, ""), (500, "InternalError"), (429, ""), (408, ""), (409, "OperationAborted")]
PROVENANCE = Provenance(argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={})


class SeededPlan:
    """Chooses a fault for about every third request, until there were enough of them."""

    def __init__(self, seed: int) -> None:
        """Start a sequence that depends on the seed alone."""
        self.rng = random.Random(seed)
        self.left = NUM_FAULTS

    def __call__(self, request: Request) -> Fault | None:
        """Return the fault of the next request, None for most."""
        if self.left <= 0 or self.rng.random() > FAULT_RATE:
            return None
        self.left -= 1
        return self.rng.choice(self.choices(request))

    def choices(self, request: Request) -> list[Fault]:
        """Return what may happen to a request; wrong bytes only where content is told by its sha256."""
        after = self.rng.randrange(max(1, request.body_bytes))
        status, code = self.rng.choice(ANSWERS)
        faults = [
            Fault("answer", status=status, code=code),
            Fault("lose-answer"),
            Fault("cut-answer", after=self.rng.randrange(64)),
            Fault("stall", seconds=READ_S * 1.4 if self.rng.random() < 0.05 else 0.02),
        ]
        is_data = ".bin" in request.path and "list-type" not in request.path
        if request.body_bytes:
            faults.append(Fault("cut-request", after=after))
            if is_data and request.method == "PUT" and self.rng.random() < 0.2:
                faults.append(Fault("wrong-request"))
        if is_data and request.method == "GET":
            faults.append(Fault("wrong-answer"))
        if not (request.method == "DELETE" and "uploadId" in request.path) and self.rng.random() < 0.2:
            faults.append(Fault("answer", status=403, code="AccessDenied"))
        return faults


@dataclass
class Log:
    """What the workers saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    finished: dict[ArtifactRef, dict[str, bytes]] = field(default_factory=dict)
    num_fetched: int = 0
    wrong: list[str] = field(default_factory=list)

    def failed(self, error: StoreError) -> None:
        """Count an error that a caller would see."""
        with self.lock:
            self.errors[type(error).__name__] += 1
            self.notes.extend(getattr(error, "__notes__", []))
            if not str(error).strip():
                self.wrong.append(f"{type(error).__name__} without a message")


def one_artifact(artifacts: Artifacts, folder: Path, number: int, log: Log) -> None:
    rng = random.Random(number)
    fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
    ref = ArtifactRef(kind="corpus", fingerprint=fingerprint)
    content = {f"{index}.bin": rng.randbytes(rng.randrange(1, 40_000)) for index in range(rng.randrange(1, 4))}
    if number % LARGE_EVERY == 0:
        content["large.bin"] = rng.randbytes(PART_BYTES + 1000)
    make(artifacts, ref, content, folder)
    with log.lock:
        log.finished[ref] = content
    artifacts.fetch(ref, folder / "out")
    for name, data in content.items():
        if (folder / "out" / name).read_bytes() != data:
            log.wrong.append(f"{ref} {name}")
    with log.lock:
        log.num_fetched += 1


def make(artifacts: Artifacts, ref: ArtifactRef, content: dict[str, bytes], folder: Path) -> None:
    entries = []
    for name, data in content.items():
        (folder / name).write_bytes(data)
        entries.append(artifacts.put(ref, name, folder / name))
    artifacts.finish(
        Manifest(
            kind=ref.kind,
            fingerprint=ref.fingerprint,
            stage_version=1,
            inputs={},
            files=tuple(entries),
            account=None,
            cost=Cost(seconds=0),
            provenance=PROVENANCE,
            facts={},
            created="",
        )
    )


def one_race(store: ObjectStore, number: int, log: Log) -> None:
    """Two writers want to create one object: at most one is told that it did."""
    results: list[tuple[bytes, bool]] = []

    def write(data: bytes) -> None:
        try:
            results.append((data, store.put_if_absent(f"race/{number}.json", data)))
        except StoreError as error:
            log.failed(error)

    threads = [threading.Thread(target=write, args=(f'{{"writer": {index}}}'.encode(),)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sum(won for _, won in results) > 1:
        log.wrong.append(f"two writers created race/{number}")


def work(proxy: FaultProxy, worker: int, folder: Path, plan: SeededPlan, log: Log) -> None:
    store = open_patiently(proxy.endpoint)
    artifacts = Artifacts(store)
    deadline = time.monotonic() + LIMIT_S
    number = worker
    while plan.left > 0 and time.monotonic() < deadline:
        place = folder / str(number)
        place.mkdir()
        try:
            one_artifact(artifacts, place, number, log)
            if number % 5 == 0:
                one_race(store, number, log)
        except StoreError as error:
            log.failed(error)
        leave_nothing_partial(place, log)
        number += WORKERS


def open_patiently(endpoint: str) -> ObjectStore:
    while True:
        try:
            store = open_store(endpoint, "faults", IMPATIENT)
            store.probe()
            return store
        except StoreError:
            continue


def leave_nothing_partial(place: Path, log: Log) -> None:
    if partial := list(place.rglob("*.partial")):
        log.wrong.append(f"left behind: {partial}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("localbucket")
    with credentials(), localbucket(folder) as endpoint:
        yield endpoint, folder / "data"


def test_1000_faults_make_no_wrong_artifact_no_orphan_part_and_no_foreign_error(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    log, plan = Log(), SeededPlan(seed=20260131)
    with fault_proxy(server[0], plan) as proxy, ThreadPoolExecutor(WORKERS) as pool:
        for future in [pool.submit(work, proxy, worker, tmp_path, plan, log) for worker in range(WORKERS)]:
            future.result()  # an error that is not ours would come out here
        provoked = proxy.done
    seen = f"errors {dict(log.errors)}; {log.num_fetched} of {len(log.finished)} fetched"
    logging.getLogger(__name__).info("provoked %s; %s", dict(provoked), seen)
    assert provoked.total() == NUM_FAULTS
    assert len(provoked) >= 12
    assert log.wrong == []
    assert log.num_fetched > 50
    assert_no_orphans(server[1], log)
    assert_what_is_stored_is_right_or_refused(open_store(server[0], "faults"), log, tmp_path / "after")


def assert_no_orphans(data: Path, log: Log) -> None:
    """Every upload that still has parts was announced by the error that left it."""
    left = {path.parent.name for path in (data / ".localbucket-uploads").glob("*/0*")}
    assert {upload for upload in left if not any(upload in note for note in log.notes)} == set()
    assert len(left) <= 1


def assert_what_is_stored_is_right_or_refused(store: ObjectStore, log: Log, folder: Path) -> None:
    artifacts = Artifacts(store)
    num_right = 0
    for ref, content in log.finished.items():
        try:
            artifacts.fetch(ref, folder / ref.fingerprint)
        except (ArtifactCorrupt, ArtifactMissing):
            continue  # damaged or cut on the way in, by a server that does not check what it stores: refused, not used
        assert {name: (folder / ref.fingerprint / name).read_bytes() for name in content} == content
        num_right += 1
    assert num_right > 0.8 * len(log.finished)
