"""Guards the store under 1,000 provoked faults: no wrong artifact, no orphan part, every error one of ours."""

import hashlib
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
from tests.conftest import Cell
from tests.faults.proxy import Fault, FaultProxy, Request, fault_proxy
from tests.faults.servers import credentials, localbucket, open_store

NUM_FAULTS = 1000
FAULT_RATE = 0.35
WORKERS = 4
LARGE_EVERY = 4  # every so many artifacts one has a file that is sent in parts
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
STALL_S = 5.0
BURST_RATE = 0.01
BURST_LENGTH = 8  # more than the four tries of a call, shared by the workers
ANSWERS = [(500, "InternalError"), (429, ""), (408, ""), (409, "OperationAborted")]
FORBIDDEN = [
    ("403 AccessDenied", Fault("answer", status=403, code="AccessDenied")),
    ("403 RequestTimeTooSkewed, clocks apart", Fault("answer", status=403, code="RequestTimeTooSkewed", seconds=3600)),
    ("403 RequestTimeTooSkewed, clocks agree", Fault("answer", status=403, code="RequestTimeTooSkewed")),
]
KINDS = {  # those that must have come up; the others are there besides
    "connection cut in a part",
    "connection cut in a single write",
    "wrong bytes in a part",
    "wrong bytes in a single write",
    "wrong bytes in a download",
    "download cut short",
    "answer lost",
    "503 SlowDown",
    f"503 to {BURST_LENGTH} requests in a row",
    f"stall of {STALL_S:.0f} s, longer than we wait",
    *(kind for kind, _ in FORBIDDEN),
}
PROVENANCE = Provenance(argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={})


class SeededPlan:
    """Chooses a fault for about every third request, until there were enough of them; counts them by kind."""

    def __init__(self, seed: int) -> None:
        """Start a sequence that depends on the seed alone."""
        self.rng = random.Random(seed)
        self.left = NUM_FAULTS
        self.burst = 0
        self.provoked: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        """Return the fault of the next request, None for most."""
        if self.left <= 0 or (self.burst == 0 and self.rng.random() > FAULT_RATE):
            return None
        if self.burst == 0 and self.rng.random() < BURST_RATE:
            self.burst = BURST_LENGTH
        if self.burst:
            self.burst -= 1
            kind, fault = f"503 to {BURST_LENGTH} requests in a row", Fault("answer", status=503, code="")
        else:
            kind, fault = self.rng.choice(self.choices(request))
        self.left -= 1
        self.provoked[kind] += 1
        return fault

    def choices(self, request: Request) -> list[tuple[str, Fault]]:
        """Return what may happen to a request; wrong bytes only where content is told by its sha256."""
        status, code = self.rng.choice(ANSWERS)
        is_data = ".bin" in request.path and "list-type" not in request.path
        is_download = is_data and request.method == "GET" and "uploads" not in request.path
        found = [
            ("503 SlowDown", Fault("answer", status=503, code="SlowDown")),
            ("408, 409, 429, 500", Fault("answer", status=status, code=code)),
            ("answer lost", Fault("lose-answer")),
            ("download cut short" if is_download else "answer cut short", self._cut_answer()),
            self._stall(),
        ]
        if request.body_bytes:
            num_choices = 8 if "partNumber" in request.path else 1  # parts are rare
            found += [self._broken_upload(request, is_data) for _ in range(num_choices)]
        if is_download:
            found.append(("wrong bytes in a download", Fault("wrong-answer")))
        if not (request.method == "DELETE" and "uploadId" in request.path) and self.rng.random() < 0.4:
            found.append(self.rng.choice(FORBIDDEN))
        return found

    def _cut_answer(self) -> Fault:
        return Fault("cut-answer", after=self.rng.randrange(64))

    def _stall(self) -> tuple[str, Fault]:
        if self.rng.random() < 0.2:
            return f"stall of {STALL_S:.0f} s, longer than we wait", Fault("stall", seconds=STALL_S)
        return "answer after 0.02 s", Fault("stall", seconds=0.02)

    def _broken_upload(self, request: Request, is_data: bool) -> tuple[str, Fault]:
        is_part = "partNumber" in request.path
        where = "in a part" if is_part else "in a single write"
        if is_data and request.method == "PUT" and self.rng.random() < (0.5 if is_part else 0.3):
            return f"wrong bytes {where}", Fault("wrong-request")
        return f"connection cut {where}", Fault("cut-request", after=self.rng.randrange(request.body_bytes))


@dataclass
class Log:
    """What the workers saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    finished: dict[ArtifactRef, dict[str, bytes]] = field(default_factory=dict)
    num_fetched: int = 0
    wrong: list[str] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)

    def failed(self, error: StoreError) -> None:
        """Count an error that a caller would see."""
        with self.lock:
            self.errors[type(error).__name__] += 1
            self.notes.extend(getattr(error, "__notes__", []))
            if not str(error).strip():
                self.nameless.append(type(error).__name__)


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
    server: tuple[str, Path], tmp_path: Path, cell: Cell
) -> None:
    started = time.monotonic()
    log, plan = Log(), SeededPlan(seed=20260131)
    with fault_proxy(server[0], plan) as proxy, ThreadPoolExecutor(WORKERS) as pool:
        running = [pool.submit(work, proxy, worker, tmp_path, plan, log) for worker in range(WORKERS)]
        foreign = [error for future in running if (error := future.exception()) is not None]
    seconds = time.monotonic() - started
    for kind, count in sorted(plan.provoked.items()):
        cell("Faults provoked", kind, "times", str(count))
    assert plan.provoked.total() == proxy.done.total() == NUM_FAULTS
    assert set(plan.provoked) >= KINDS
    assert (foreign, log.nameless, log.wrong) == ([], [], [])
    assert log.num_fetched > 50
    num_orphans = count_orphans(server[1], log)
    num_right = count_right(open_store(server[0], "faults"), log, tmp_path / "after")
    outcome = {
        "faults": NUM_FAULTS,
        "artifacts finished": len(log.finished),
        "of them fetched and right at once": log.num_fetched,
        "right when fetched again without faults": num_right,
        "refused then, since the server had stored wrong bytes": len(log.finished) - num_right,
        "wrong artifacts": len(log.wrong),
        "orphan parts": num_orphans,
        "errors that are not ours or say nothing": len(foreign) + len(log.nameless),
        **{f"ended as {name}": count for name, count in sorted(log.errors.items())},
        "seconds": round(seconds),
    }
    for row, value in outcome.items():
        cell("What the faults led to", row, "number", str(value))
    assert num_orphans == 0
    assert num_right > 0.8 * len(log.finished)


def count_orphans(data: Path, log: Log) -> int:
    """Return how many uploads still have parts that no error announced, as one does when even aborting failed."""
    left = {path.parent.name for path in (data / ".localbucket-uploads").glob("*/0*")}
    announced = {upload for upload in left if any(upload in note for note in log.notes)}
    assert len(announced) <= 1
    return len(left - announced)


def count_right(store: ObjectStore, log: Log, folder: Path) -> int:
    """Return how many finished artifacts come back right; wrong ones must be refused."""
    artifacts = Artifacts(store)

    def is_right(ref: ArtifactRef) -> bool:
        try:
            artifacts.fetch(ref, folder / ref.fingerprint)
        except (ArtifactCorrupt, ArtifactMissing):
            return False  # damaged or cut on the way in, by a server that does not check what it stores
        content = log.finished[ref]
        assert {name: (folder / ref.fingerprint / name).read_bytes() for name in content} == content
        return True

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(is_right, log.finished))
