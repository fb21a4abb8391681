"""Guards one behaviour of the store on every server: localbucket, moto, Ceph where installed, and one that you name.

    DRAFTWORKS_TEST_S3_ENDPOINT=http://host:port AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... \
        python -m pytest tests/unit/test_store_conformance.py

What each server honours is measured here, and printed as a table at the end of the run.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import botocore.auth
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tasks.errors import ArtifactCorrupt, ArtifactMissing, StoreError, StoreRefused, StoreUnavailable
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.lease import hold_lease
from tasks.store.manifest import Cost, Manifest, Provenance
from tasks.store.objects import ObjectStore, Patience, StoreFeatures, StoreLocation, connect
from tests.conftest import Cell
from tests.faults.ceph import ceph, ceph_version, why_no_ceph
from tests.faults.proxy import Fault, Request, fault_proxy
from tests.faults.servers import credentials, localbucket, moto

MIB = 1024 * 1024
LARGE_BYTES = 13 * MIB
SMALL_PARTS = Patience(part_bytes=5 * MIB, attempts=3, first_wait_s=0.1)
BUCKET = "draftworks-conformance"
OTHER_ENDPOINT = "DRAFTWORKS_TEST_S3_ENDPOINT"
EXPECTED = {
    "localbucket": StoreFeatures(if_none_match=True, if_match=False, delete_objects=False),
    "moto": StoreFeatures(if_none_match=True, if_match=True, delete_objects=True),
    "ceph": StoreFeatures(if_none_match=True, if_match=True, delete_objects=True, bare_etags=True),
}


@pytest.fixture(scope="module", params=["localbucket", "moto", "ceph", "named"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    with ExitStack() as stack:
        if name == "named":
            if OTHER_ENDPOINT not in os.environ:
                pytest.skip(f"{OTHER_ENDPOINT} names no server")
            yield name, os.environ[OTHER_ENDPOINT]
            return
        if name == "ceph":
            if reason := why_no_ceph():
                pytest.skip(reason)
            yield name, stack.enter_context(ceph(folder))
            return
        stack.enter_context(credentials())
        yield name, stack.enter_context((localbucket if name == "localbucket" else moto)(folder))


@pytest.fixture
def store(server: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    opened = connect(StoreLocation(server[1], BUCKET, f"run-{os.getpid()}/{request.node.originalname}"), SMALL_PARTS)
    opened.create_bucket()
    yield opened
    opened.abort_uploads(older_than_s=0)
    opened.delete([key for key, _ in opened.list()])


Honours = Callable[[str, str], None]


@pytest.fixture
def honours(server: tuple[str, str], cell: Cell) -> Honours:
    """Give a function that notes what the server makes of a feature, for the table."""
    name = server[0]
    if name in ("localbucket", "moto"):
        title = f"{name} {importlib.metadata.version(name)}"
    else:
        title = f"Ceph RADOS Gateway {ceph_version()}" if name == "ceph" else server[1]
    return lambda feature, text: cell("What each server honours", feature, title, text)


def plain_client(store: ObjectStore, **config: Any) -> Any:
    """Return a client with boto3's own defaults, to see what a server makes of them."""
    settings = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **config)
    location = store.location
    session = boto3.session.Session()  # the default one remembers the credentials of the first server
    return session.client("s3", endpoint_url=location.endpoint, region_name=location.region, config=settings)


def test_what_the_server_honours(server: tuple[str, str], store: ObjectStore, honours: Honours) -> None:
    store.check_bucket()
    honours("path-style addresses", "yes")
    store.canary()
    honours("small objects come back as sent (canary)", "yes")
    seen = store.probe()
    honours("`If-None-Match: *` on writes", "yes" if seen.if_none_match else "no")
    quotes = ", ETag without its quotes" if seen.bare_etags else ""
    honours("`If-Match` on writes (to move a champion)", f"yes{quotes}" if seen.if_match else "no: refused by us")
    honours("DeleteObjects", "yes" if seen.delete_objects else "no: one by one")
    assert seen == EXPECTED.get(server[0], seen)


def test_listings_go_on_after_1000_keys(store: ObjectStore, honours: Honours) -> None:
    keys = [f"many/{number:04d}" for number in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put_bytes(key, b"x"), keys))
    assert [key for key, _ in store.list("many/")] == keys
    honours("listing past 1,000 keys", "yes")


def test_keys_of_all_kinds_come_back(store: ObjectStore, honours: Honours) -> None:
    keys = sorted(["a b", "a+b", "a%2Fb", "\u00fcml\u00e4ut", "deep/er/f.json", "x" * 200, "=&?#", "~'()*!"])
    for key in keys:
        store.put_bytes(key, key.encode())
    assert sorted(key for key, _ in store.list()) == keys
    for key in keys:
        assert store.get_bytes(key) == key.encode()
        assert store.size(key) == len(key.encode())
    honours("keys with blanks, signs and umlauts", "yes")


def random_file(path: Path, size: int) -> str:
    data = os.urandom(size)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def test_a_large_file_goes_up_in_parts_and_comes_back(store: ObjectStore, honours: Honours, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "in", LARGE_BYTES)
    assert store.put_file(tmp_path / "in", "large") == (LARGE_BYTES, sha256)
    honours("uploads in parts", "yes")
    store.get_file("large", tmp_path / "out", size_bytes=LARGE_BYTES, sha256=sha256)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    assert store.read_range("large", LARGE_BYTES - 3, 3) == (tmp_path / "in").read_bytes()[-3:]
    with pytest.raises(ArtifactCorrupt):
        store.read_range("large", LARGE_BYTES - 3, 4)
    honours("reading ranges", "yes")
    assert store.uploads() in ([], None)


UPLOADING = """
import sys
from pathlib import Path
from tasks.store.objects import Patience, StoreLocation, connect
endpoint, bucket, prefix, path = sys.argv[1:]
connect(StoreLocation(endpoint, bucket, prefix), Patience(part_bytes=5 * 1024 * 1024)).put_file(Path(path), "f")
"""


def test_the_upload_of_a_killed_process_is_removed_by_the_next(
    store: ObjectStore, honours: Honours, tmp_path: Path
) -> None:
    sha256 = random_file(tmp_path / "in", LARGE_BYTES)
    is_sending = threading.Event()

    def plan(request: Request) -> Fault | None:
        if "partNumber=3" not in request.path:
            return None
        is_sending.set()
        return Fault("stall", seconds=1)

    store.put_bytes("f", b"from before")
    with fault_proxy(store.location.endpoint or "", plan) as proxy:
        command = [sys.executable, "-c", UPLOADING, proxy.endpoint, BUCKET, store.location.prefix, str(tmp_path / "in")]
        with subprocess.Popen(command) as child:
            assert is_sending.wait(60)
            child.kill()
    left = store.uploads()
    assert store.get_bytes("f") == b"from before"
    honours("listing unfinished uploads", "no" if left is None else "yes")
    assert left is None or [upload.key for upload in left] == ["f"]
    assert store.put_file(tmp_path / "in", "f") == (LARGE_BYTES, sha256)
    assert store.uploads() in ([], None)
    text = "no: its parts stay on the server" if left is None else "yes"
    honours("an upload removes what a killed one left of its key", text)
    store.get_file("f", tmp_path / "out", size_bytes=LARGE_BYTES, sha256=sha256)


def test_two_writers_without_a_lease_both_finish(store: ObjectStore, tmp_path: Path) -> None:
    sha256 = random_file(tmp_path / "in", LARGE_BYTES)
    results: list[tuple[int, str]] = []

    def plan(request: Request) -> Fault | None:
        if "partNumber=2" in request.path and not results:
            results.append(store.put_file(tmp_path / "in", "f"))  # its start aborts the other's upload
        return None

    with fault_proxy(store.location.endpoint or "", plan) as proxy:
        other = connect(dataclasses.replace(store.location, endpoint=proxy.endpoint), SMALL_PARTS)
        try:
            results.append(other.put_file(tmp_path / "in", "f"))
        except StoreUnavailable:
            # moto answers 500 for a part of an upload that is gone, Ceph at times cuts the connection: what a stage is
            # tried again for.
            results.append(other.put_file(tmp_path / "in", "f"))
    assert results == [(LARGE_BYTES, sha256)] * 2
    store.get_file("f", tmp_path / "out", size_bytes=LARGE_BYTES, sha256=sha256)
    assert store.uploads() in ([], None)


def put_plainly(client: Any, store: ObjectStore, **more: Any) -> str:
    """Write b"x" with one more header; return "" or the code of the refusal."""
    try:
        client.put_object(Bucket=BUCKET, Key=store.location.full_key("f"), Body=b"x", **more)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    assert store.get_bytes("f") == b"x"
    return ""


def test_what_becomes_of_checksums(store: ObjectStore, honours: Honours) -> None:
    refused = put_plainly(plain_client(store), store)
    honours("takes boto3's default CRC32 (we send none)", f"no: {refused}" if refused else "yes")
    quiet = plain_client(store, request_checksum_calculation="when_required")
    assert put_plainly(quiet, store) == ""
    for feature, more in (("CRC32", {"ChecksumCRC32": "AAAAAA=="}), ("Content-MD5", {"ContentMD5": "A" * 22 + "=="})):
        honours(f"refuses a wrong {feature}", "yes" if put_plainly(quiet, store, **more) else "no")


def test_bytes_that_change_on_the_way_in(store: ObjectStore, honours: Honours, tmp_path: Path) -> None:
    """The signature covers the sha256 of a body: a server that checks it refuses what a proxy changed."""
    sha256 = random_file(tmp_path / "in", 1000)

    def plan(request: Request) -> Fault | None:
        return Fault("wrong-request") if request.method == "PUT" else None

    with fault_proxy(store.location.endpoint or "", plan) as proxy:
        through = connect(dataclasses.replace(store.location, endpoint=proxy.endpoint), SMALL_PARTS)
        try:
            through.put_file(tmp_path / "in", "f")
            honours("refuses a body that does not match its signature", "no: found on reading, by sha256")
        except StoreError:
            honours("refuses a body that does not match its signature", "yes")
            assert store.size("f") is None
            return
    with pytest.raises(ArtifactCorrupt):
        store.get_file("f", tmp_path / "out", size_bytes=1000, sha256=sha256)


def test_empty_objects_and_files(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("empty", b"")
    assert store.get_bytes("empty") == b""
    assert list(store.list()) == [("empty", 0)]
    store.get_file("empty", tmp_path / "f", size_bytes=0, sha256=hashlib.sha256().hexdigest())
    assert (tmp_path / "f").read_bytes() == b""


def test_conditional_writes_do_what_the_probe_says(store: ObjectStore) -> None:
    features = store.probe()
    assert store.put_if_absent("f", b"first")
    if features.if_none_match:
        assert not store.put_if_absent("f", b"second")
        assert store.get_bytes("f") == b"first"
    if features.if_match:
        versioned = store.get_versioned("f")
        assert versioned is not None
        assert store.put_if_match("f", b"third", versioned[1])
        assert not store.put_if_match("f", b"fourth", versioned[1])
        assert not store.put_if_match("gone", b"x", versioned[1])
        assert store.get_bytes("f") == b"third"


def test_deleting_many_leaves_none_and_twice_is_fine(store: ObjectStore) -> None:
    keys = [f"d/{number}" for number in range(25)]
    for key in keys:
        store.put_bytes(key, b"x")
    store.delete([*keys, "d/never-there"])
    store.delete(keys)
    assert list(store.list()) == []


def test_missing_keys_and_buckets(store: ObjectStore) -> None:
    assert store.size("gone") is None
    with pytest.raises(ArtifactMissing):
        store.get_bytes("gone")
    elsewhere = connect(dataclasses.replace(store.location, bucket=f"{BUCKET}-never-made"), SMALL_PARTS)
    with pytest.raises(StoreRefused):
        elsewhere.check_bucket()
    with pytest.raises(StoreRefused):
        elsewhere.get_bytes("f")


def test_an_artifact_is_made_found_fetched_and_deleted(store: ObjectStore, tmp_path: Path) -> None:
    artifacts, ref = Artifacts(store), ArtifactRef(kind="draft", fingerprint="e" * 64)
    files = (artifacts.put_bytes(ref, "config.json", b"{}"), artifacts.put_bytes(ref, "epochs/0/w.bin", b"123"))
    provenance = Provenance(argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={})
    manifest = Manifest(
        kind=ref.kind,
        fingerprint=ref.fingerprint,
        stage_version=1,
        inputs={},
        files=files,
        account=None,
        cost=Cost(seconds=1),
        provenance=provenance,
        facts={"note": "\u00fc"},
        created="2026-01-31T02:00:00Z",
    )
    with hold_lease(store, ref) as lease:
        artifacts.finish(manifest)
        lease.ensure_held()
    assert artifacts.find(ref) == manifest
    artifacts.fetch(ref, tmp_path)
    assert (tmp_path / "epochs/0/w.bin").read_bytes() == b"123"
    artifacts.delete(ref)
    assert artifacts.find(ref) is None


def test_credentials_and_clock_are_checked(
    server: tuple[str, str], store: ObjectStore, honours: Honours, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(opened: ObjectStore) -> str:
        try:
            opened.put_bytes("f", b"x")
        except StoreError as error:
            return str(error)
        return ""

    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong_secret = refusal(connect(store.location, SMALL_PARTS))
    with monkeypatch.context() as patch:
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: now - datetime.timedelta(hours=1))
        late = refusal(store)
    honours("checks credentials", "yes" if wrong_secret else "no")
    honours("checks the clock", "yes" if late else "no")
    assert "AWS_SECRET_ACCESS_KEY" in wrong_secret or server[0] in ("localbucket", "moto")
    assert "the clocks agree, so the request arrived late" in late or server[0] in ("localbucket", "moto")
