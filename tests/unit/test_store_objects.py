"""Guards the object store against a real server over loopback: paging, bounds, faults of set-up, nothing half-made."""

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    EvidenceError,
    RecipeError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from tasks.store.objects import ObjectStore, Patience, StoreLocation, connect
from tests.faults.proxy import Fault, Request, fault_proxy
from tests.faults.servers import FAST, credentials, free_port, localbucket, open_store
from tests.faults.stand_ins import answering, error_body, silent

MIB = 1024 * 1024
QUICK_S = 20.0  # most that a dead or silent server may cost with the patience of these tests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("localbucket")
    with credentials(), localbucket(folder) as endpoint:
        yield endpoint, folder / "data"


@pytest.fixture
def store(server: tuple[str, Path], request: pytest.FixtureRequest) -> ObjectStore:
    return open_store(server[0], re.sub(r"[^a-z0-9_]+", "-", request.node.name))


def left_uploads(data: Path) -> list[Path]:
    return list((data / ".localbucket-uploads").glob("*/*"))


def write_random(path: Path, size: int) -> str:
    data = os.urandom(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def test_more_than_1000_objects_are_all_listed(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put_bytes(f"many/{number:04d}", b"x"), range(1001)))
    store.put_bytes("man", b"not below")
    assert [key for key, _ in store.list("many/")] == [f"many/{number:04d}" for number in range(1001)]
    store.delete([key for key, _ in store.list("many/")])
    assert list(store.list("many/")) == []


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, 13 * MIB])
def test_a_file_of_any_size_comes_back(store: ObjectStore, tmp_path: Path, size: int) -> None:
    sha256 = write_random(tmp_path / "in", size)
    assert store.put_file(tmp_path / "in", "file.bin") == (size, sha256)
    store.get_file("file.bin", tmp_path / "deep" / "out", size_bytes=size, sha256=sha256, durable=size == 1)
    assert (tmp_path / "deep" / "out").read_bytes() == (tmp_path / "in").read_bytes()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert store.size("file.bin") == size


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "a/../../b", "", "a//b", "a\\b"])
def test_keys_that_leave_the_prefix_are_refused(store: ObjectStore, key: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    uses: list[Callable[[], object]] = [
        lambda: store.put_bytes(key, b"x"),
        lambda: store.get_bytes(key),
        lambda: store.size(key),
        lambda: store.put_file(tmp_path / "f", key),
        lambda: store.put_if_absent(key, b"x"),
        lambda: store.delete([key]),
    ]
    for use in uses:
        with pytest.raises(StoreError, match="keys stay below their prefix"):
            use()


@pytest.mark.parametrize("size", [9, 9 * MIB])
def test_wrong_bytes_are_corrupt_and_leave_no_file(store: ObjectStore, tmp_path: Path, size: int) -> None:
    sha256 = write_random(tmp_path / "in", size)
    store.put_file(tmp_path / "in", "f")
    out = tmp_path / "out" / "f"
    with pytest.raises(ArtifactCorrupt, match="sha256"):
        store.get_file("f", out, size_bytes=size, sha256="0" * 64)
    for wrong_size in (size - 1, size + 1):
        with pytest.raises(ArtifactCorrupt):
            store.get_file("f", out, size_bytes=wrong_size, sha256=sha256)
    assert list(out.parent.iterdir()) == []


def test_a_failed_download_keeps_the_file_that_was_there(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("f", b"new")
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(ArtifactCorrupt):
        store.get_file("f", tmp_path / "f", size_bytes=3, sha256="0" * 64)
    assert (tmp_path / "f").read_bytes() == b"old"


def test_ranges(store: ObjectStore) -> None:
    store.put_bytes("f", b"0123456789")
    assert store.read_range("f", 2, 3) == b"234"
    assert store.read_range("f", 0, 0) == b""
    for start, length in ((8, 5), (10, 1), (99, 1)):
        with pytest.raises(ArtifactCorrupt):
            store.read_range("f", start, length)


def test_what_is_missing(store: ObjectStore, tmp_path: Path) -> None:
    assert store.size("gone") is None
    assert store.get_versioned("gone") is None
    assert store.get_aged("gone") is None
    store.delete(["gone"])
    uses: list[Callable[[], object]] = [lambda: store.get_bytes("gone"), lambda: store.read_range("gone", 0, 1)]
    for use in uses:
        with pytest.raises(ArtifactMissing, match="NoSuchKey"):
            use()
    with pytest.raises(ArtifactMissing):
        store.get_file("gone", tmp_path / "f", size_bytes=1, sha256="0" * 64)
    with pytest.raises(EvidenceError, match="No such file"):
        store.put_file(tmp_path / "no-such-file", "f")
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_is_too_large_to_read_whole(store: ObjectStore) -> None:
    store.put_bytes("f", b"0123456789")
    with pytest.raises(StoreError, match="10 bytes, expected at most 9"):
        store.get_bytes("f", max_bytes=9)


def test_a_part_that_is_refused_aborts_the_upload(server: tuple[str, Path], tmp_path: Path) -> None:
    write_random(tmp_path / "in", 13 * MIB)

    def plan(request: Request) -> Fault | None:
        return Fault("answer", status=403, code="AccessDenied") if "partNumber=2" in request.path else None

    with fault_proxy(server[0], plan) as proxy:
        store = open_store(proxy.endpoint, "refused")
        with pytest.raises(StoreRefused, match=r"send part 2 of s3://store-tests/refused/f .*AccessDenied"):
            store.put_file(tmp_path / "in", "f")
        assert proxy.done.total() == 1  # permanent: asked once
    assert store_is_clean(server, "refused")


def test_a_part_that_never_arrives_aborts_the_upload(server: tuple[str, Path], tmp_path: Path) -> None:
    write_random(tmp_path / "in", 13 * MIB)

    def plan(request: Request) -> Fault | None:
        return Fault("cut-request", after=1000) if "partNumber=3" in request.path else None

    with fault_proxy(server[0], plan) as proxy:
        store = open_store(proxy.endpoint, "cut")
        with pytest.raises(StoreUnavailable, match="send part 3"):
            store.put_file(tmp_path / "in", "f")
        assert proxy.done.total() == FAST.attempts
    assert store_is_clean(server, "cut")


def store_is_clean(server: tuple[str, Path], prefix: str) -> bool:
    return not left_uploads(server[1]) and not list(open_store(server[0], prefix).list())


def test_an_upload_whose_last_answer_is_lost_is_sent_again(server: tuple[str, Path], tmp_path: Path) -> None:
    sha256 = write_random(tmp_path / "in", 13 * MIB)
    lost: list[str] = []

    def plan(request: Request) -> Fault | None:
        if request.method == "POST" and "uploadId" in request.path and not lost:
            lost.append(request.path)
            return Fault("lose-answer")
        return None

    with fault_proxy(server[0], plan) as proxy:
        store = open_store(proxy.endpoint, "lost")
        assert store.put_file(tmp_path / "in", "f") == (13 * MIB, sha256)
    store.get_file("f", tmp_path / "out", size_bytes=13 * MIB, sha256=sha256)
    assert not left_uploads(server[1])


def test_a_conditional_write_whose_answer_is_lost_counts_as_ours(server: tuple[str, Path]) -> None:
    lost: list[str] = []

    def plan(request: Request) -> Fault | None:
        if request.method == "PUT" and not lost:
            lost.append(request.path)
            return Fault("lose-answer")
        return None

    with fault_proxy(server[0], plan) as proxy:
        store = connect(StoreLocation(proxy.endpoint, "store-tests", "conditional"), FAST)
        assert store.put_if_absent("f", b"mine")
        assert not store.put_if_absent("f", b"another's")
        assert store.get_bytes("f") == b"mine"


def test_a_missing_bucket_is_named_with_the_commands(server: tuple[str, Path]) -> None:
    store = connect(StoreLocation(server[0], "no-such-bucket"), FAST)
    with pytest.raises(
        StoreRefused, match=r"NoSuchBucket.*`draftworks up`.*`aws --endpoint-url \S+ s3 mb s3://no-such-bucket"
    ):
        store.check_bucket()
    with pytest.raises(StoreRefused, match=r"NoSuchBucket.*draftworks up"):
        store.put_bytes("f", b"x")
    assert store.create_bucket()
    assert not store.create_bucket()
    store.check_bucket()


def test_no_credentials(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreRefused, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        connect(StoreLocation(server[0], "bucket"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "half")
    with pytest.raises(StoreRefused, match="AWS_SECRET_ACCESS_KEY"):
        connect(StoreLocation(server[0], "bucket"))


@pytest.mark.parametrize(
    ("code", "mend"),
    [
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("AccessDenied", "give these credentials"),
    ],
)
def test_refused_credentials_are_named_and_never_tried_again(code: str, mend: str) -> None:
    with credentials(), answering(lambda method, path, body: (403, error_body(code))) as (endpoint, asked):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreRefused, match=f"HTTP 403 {code}.*{mend}"):
            store.get_bytes("f")
        assert len(asked) == 1
        with pytest.raises(StoreRefused, match="403"):
            store.check_bucket()
        assert len(asked) == 2


def test_a_server_that_stores_its_framing_is_caught_by_the_canary() -> None:
    kept: dict[str, bytes] = {}

    def framing(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method == "PUT":
            kept[path] = b"%x\r\n%s\r\n0\r\nx-amz-checksum-crc32:+6GOlw==\r\n\r\n" % (len(body), body)
        return (200, kept[path]) if method == "GET" else (200, b"")

    with credentials(), answering(framing) as (endpoint, _):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreRefused, match="transfer framing.*another one"):
            store.canary()


def test_a_server_that_changes_bytes_is_caught_by_the_canary() -> None:
    def changing(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return (200, b"something else" if method == "GET" else b"")

    with credentials(), answering(changing) as (endpoint, _):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreRefused, match="other bytes came back"):
            store.canary()


def test_the_canary_passes_and_leaves_nothing(server: tuple[str, Path]) -> None:
    store = open_store(server[0], "canary")
    store.canary()
    store.probe()
    assert list(store.list()) == []


MODIFIED = "<LastModified>2026-01-31T02:00:00.000Z</LastModified>"


def page(is_truncated: str, item: str = "") -> bytes:
    return f"<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{item}</ListBucketResult>".encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (page("true"), "the pages do not end"),
        (
            page("false", f"<Contents><Key>elsewhere/f</Key><Size>1</Size>{MODIFIED}</Contents>"),
            "not below that prefix",
        ),
        (page("false", "<Contents><Key>mine/f</Key><Size>many</Size></Contents>"), "not S3's"),
    ],
)
def test_listings_that_make_no_sense_are_refused(body: bytes, message: str) -> None:
    with credentials(), answering(lambda method, path, sent: (200, body)) as (endpoint, _):
        store = connect(StoreLocation(endpoint, "bucket", "mine"), FAST)
        with pytest.raises(StoreError, match=message):
            list(store.list())


def test_a_server_that_ignores_ranges_is_noticed() -> None:
    with credentials(), answering(lambda method, path, body: (200, b"0123456789")) as (endpoint, _):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(ArtifactCorrupt, match="asked for bytes=2-4"):
            store.read_range("f", 2, 3)


def test_a_port_where_nothing_listens_is_told_soon() -> None:
    started = time.monotonic()
    with credentials():
        store = connect(StoreLocation(f"http://127.0.0.1:{free_port()}", "bucket"), FAST)
        uses: list[Callable[[], object]] = [store.check_bucket, store.canary, lambda: list(store.list())]
        for use in uses:
            with pytest.raises(StoreUnavailable, match="check that the server runs"):
                use()
    assert time.monotonic() - started < QUICK_S


def test_a_server_that_never_answers_is_told_soon() -> None:
    started = time.monotonic()
    with credentials(), silent() as endpoint:
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreUnavailable, match="ReadTimeoutError"):
            store.check_bucket()
    assert time.monotonic() - started < QUICK_S


def test_loopback_is_reached_past_a_proxy_of_the_environment(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    open_store(server[0], "proxy").check_bucket()


def test_parts_below_what_servers_take_are_refused() -> None:
    with pytest.raises(RecipeError, match="parts of at least"):
        Patience(part_bytes=MIB)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tasks.errors import StoreError
from tests.faults.servers import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000))
store = open_store(sys.argv[1], "disk")
try:
    store.get_file("f", Path(sys.argv[2]) / "f", size_bytes=int(sys.argv[3]), sha256=sys.argv[4])
except StoreError as error:
    print(error)
"""


def test_a_disk_that_fills_up_in_the_middle_is_one_clear_error(server: tuple[str, Path], tmp_path: Path) -> None:
    sha256 = write_random(tmp_path / "in", 3 * MIB)
    open_store(server[0], "disk").put_file(tmp_path / "in", "f")
    command = [sys.executable, "-c", FULL_DISK, server[0], str(tmp_path / "out"), str(3 * MIB), sha256]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "File too large" in done.stdout
    assert f"it takes {3 * MIB} bytes: free space" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []
