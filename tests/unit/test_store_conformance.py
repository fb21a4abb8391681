"""Guards one behaviour of the store on every server: localbucket, moto, Ceph where installed, and one that you name.

    DRAFTWORKS_TEST_S3_ENDPOINT=http://host:port AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... \
        python -m pytest tests/unit/test_store_conformance.py

What each server honours is written as one JSON line per server to the log (pytest --log-cli-level=INFO).
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tasks.errors import ArtifactMissing, StoreError, StoreRefused
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.lease import hold_lease
from tasks.store.manifest import Cost, Manifest, Provenance
from tasks.store.objects import ObjectStore, Patience, StoreFeatures, StoreLocation, connect
from tests.faults.ceph import ceph, why_no_ceph
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


def test_what_the_server_honours(server: tuple[str, str], store: ObjectStore) -> None:
    store.check_bucket()
    store.canary()
    seen = store.probe()
    logging.getLogger(__name__).info("%s", json.dumps({"server": server[0], **dataclasses.asdict(seen)}))
    assert seen == EXPECTED.get(server[0], seen)


def test_keys_of_all_kinds_come_back(store: ObjectStore) -> None:
    keys = sorted(["a b", "a+b", "a%2Fb", "\u00fcml\u00e4ut", "deep/er/f.json", "x" * 200, "=&?#", "~'()*!"])
    for key in keys:
        store.put_bytes(key, key.encode())
    assert sorted(key for key, _ in store.list()) == keys
    for key in keys:
        assert store.get_bytes(key) == key.encode()
        assert store.size(key) == len(key.encode())


def test_a_large_file_goes_up_in_parts_and_comes_back(store: ObjectStore, tmp_path: Path) -> None:
    data = os.urandom(LARGE_BYTES)
    sha256 = hashlib.sha256(data).hexdigest()
    (tmp_path / "in").write_bytes(data)
    assert store.put_file(tmp_path / "in", "large") == (LARGE_BYTES, sha256)
    store.get_file("large", tmp_path / "out", size_bytes=LARGE_BYTES, sha256=sha256)
    assert (tmp_path / "out").read_bytes() == data
    assert store.read_range("large", LARGE_BYTES - 3, 3) == data[-3:]
    assert store.abort_uploads(older_than_s=0) in (0, None)


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


def test_wrong_credentials_are_refused_where_they_are_checked(
    server: tuple[str, str], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server[0] in ("localbucket", "moto"):
        pytest.skip(f"{server[0]} checks no credentials")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY|credentials"):
        connect(store.location, SMALL_PARTS).put_bytes("f", b"x")
