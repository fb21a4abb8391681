"""Guards the one rule for done: a manifest is there and its files match; parts are bound to their fingerprint."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import ArtifactCorrupt, ArtifactMissing, StoreError
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Cost, FileEntry, Manifest, PartManifest, Provenance, dump
from tests.faults.servers import credentials, localbucket, open_store

FINGERPRINT = "ab" * 32
REF = ArtifactRef(kind="corpus", fingerprint=FINGERPRINT)
PROVENANCE = Provenance(
    argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={"name": "x"}
)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with credentials(), localbucket(tmp_path_factory.mktemp("localbucket")) as url:
        yield url


@pytest.fixture
def artifacts(endpoint: str, request: pytest.FixtureRequest) -> Artifacts:
    return Artifacts(open_store(endpoint, re.sub(r"[^a-z0-9_]+", "-", request.node.name)))


def manifest(*files: FileEntry) -> Manifest:
    return Manifest(
        kind="corpus",
        fingerprint=FINGERPRINT,
        stage_version=1,
        inputs={},
        files=files,
        account=None,
        cost=Cost(seconds=1),
        provenance=PROVENANCE,
        facts={},
        created="2026-01-31T02:00:00Z",
    )


def finished(artifacts: Artifacts) -> Manifest:
    made = manifest(artifacts.put_bytes(REF, "a.txt", b"first"), artifacts.put_bytes(REF, "deep/er/b.txt", b"second"))
    assert artifacts.find(REF) is None
    assert artifacts.finish(made) == REF
    return made


def test_done_means_manifest_and_files(artifacts: Artifacts) -> None:
    assert "manifest.json is not there" in artifacts.explain(REF)
    made = finished(artifacts)
    assert artifacts.find(REF) == made
    assert "its 2 files have the sizes" in artifacts.explain(REF)
    assert list(artifacts.refs("corpus")) == [REF]
    assert list(artifacts.refs("draft")) == []


@pytest.mark.parametrize("harm", ["delete", "shorten"])
def test_a_listed_file_that_does_not_match_means_not_done(artifacts: Artifacts, harm: str, tmp_path: Path) -> None:
    finished(artifacts)
    key = REF.prefix + "deep/er/b.txt"
    if harm == "delete":
        artifacts.store.delete([key])
    else:
        artifacts.store.put_bytes(key, b"sec")
    assert artifacts.find(REF) is None
    assert ("is not there" if harm == "delete" else "has 3 bytes, expected 6") in artifacts.explain(REF)
    with pytest.raises(ArtifactMissing, match="run the stage that makes corpus"):
        artifacts.fetch(REF, tmp_path)


def test_a_manifest_that_was_cut_off_means_not_done(artifacts: Artifacts) -> None:
    made = finished(artifacts)
    artifacts.store.put_bytes(REF.prefix + "manifest.json", dump(made)[:-40])
    assert artifacts.find(REF) is None
    assert "cut off" in artifacts.explain(REF)


def test_the_manifest_of_another_artifact_is_refused(artifacts: Artifacts) -> None:
    made = finished(artifacts)
    artifacts.store.put_bytes(REF.prefix + "manifest.json", dump(made.model_copy(update={"fingerprint": "cd" * 32})))
    with pytest.raises(ArtifactCorrupt, match="copied to a wrong place"):
        artifacts.find(REF)


def test_a_manifest_whose_path_leaves_the_folder_is_refused(artifacts: Artifacts, tmp_path: Path) -> None:
    made = json.loads(dump(finished(artifacts)))
    made["files"][0]["path"] = "../../outside"
    artifacts.store.put_bytes(REF.prefix + "manifest.json", json.dumps(made).encode() + b"\n")
    with pytest.raises(ArtifactCorrupt, match="leaves its folder"):
        artifacts.fetch(REF, tmp_path / "in")
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_of_a_newer_version_is_refused(artifacts: Artifacts) -> None:
    made = json.loads(dump(finished(artifacts))) | {"format_version": 9}
    artifacts.store.put_bytes(REF.prefix + "manifest.json", json.dumps(made).encode() + b"\n")
    with pytest.raises(StoreError, match="upgrade"):
        artifacts.find(REF)


def test_finish_refuses_while_a_listed_file_is_absent(artifacts: Artifacts) -> None:
    there = artifacts.put_bytes(REF, "a.txt", b"first")
    with pytest.raises(ArtifactMissing, match=r"b\.txt is not there.*no manifest was written"):
        artifacts.finish(manifest(there, there.model_copy(update={"path": "b.txt"})))
    with pytest.raises(ArtifactMissing, match="has 5 bytes, expected 6"):
        artifacts.finish(manifest(there.model_copy(update={"size_bytes": 6})))
    assert artifacts.find(REF) is None


@pytest.mark.parametrize("name", ["manifest.json", "parts/0.json", "../x", "/x"])
def test_names_that_belong_to_manifests_are_refused(artifacts: Artifacts, name: str) -> None:
    with pytest.raises(StoreError):
        artifacts.put_bytes(REF, name, b"x")


def test_fetch_verifies_and_downloads_only_what_is_missing(artifacts: Artifacts, tmp_path: Path) -> None:
    finished(artifacts)
    artifacts.fetch(REF, tmp_path)
    assert (tmp_path / "a.txt").read_bytes() == b"first"
    before = os.stat(tmp_path / "a.txt").st_ino
    (tmp_path / "deep/er/b.txt").write_bytes(b"sEcond")
    artifacts.fetch(REF, tmp_path)
    assert os.stat(tmp_path / "a.txt").st_ino == before
    assert (tmp_path / "deep/er/b.txt").read_bytes() == b"second"


def test_fetch_takes_only_the_named_files(artifacts: Artifacts, tmp_path: Path) -> None:
    finished(artifacts)
    artifacts.fetch(REF, tmp_path, names=["a.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(StoreError, match=r"lists no file 'c\.txt'; it lists: a\.txt"):
        artifacts.fetch(REF, tmp_path, names=["c.txt"])


def test_bytes_that_changed_in_the_store_are_corrupt(artifacts: Artifacts, tmp_path: Path) -> None:
    finished(artifacts)
    artifacts.store.put_bytes(REF.prefix + "a.txt", b"fIrst")
    assert artifacts.find(REF) is not None  # same size: only reading tells
    with pytest.raises(ArtifactCorrupt, match="sha256"):
        artifacts.fetch(REF, tmp_path)
    with pytest.raises(ArtifactCorrupt, match="sha256"):
        artifacts.read_bytes(REF, "a.txt")
    assert artifacts.read_bytes(REF, "deep/er/b.txt") == b"second"
    assert not (tmp_path / "a.txt").exists()


def test_a_link_in_the_folder_does_not_lead_out_of_it(artifacts: Artifacts, tmp_path: Path) -> None:
    finished(artifacts)
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (folder / "deep").symlink_to(outside)
    (outside / "a.txt").write_bytes(b"precious")
    (folder / "a.txt").symlink_to(outside / "a.txt")
    with pytest.raises(StoreError, match="leads out of"):
        artifacts.fetch(REF, folder)
    artifacts.fetch(REF, folder, names=["a.txt"])
    assert (outside / "a.txt").read_bytes() == b"precious"
    assert not (folder / "a.txt").is_symlink()
    assert sorted(path.name for path in outside.iterdir()) == ["a.txt"]


def test_parts_that_can_be_used(artifacts: Artifacts, tmp_path: Path) -> None:
    entry = artifacts.put_bytes(REF, "shard-0", b"rows")
    good = PartManifest(name="shard-0", fingerprint=FINGERPRINT, files=(entry,), facts={"rows": 4})
    artifacts.put_part(REF, good)
    gone = entry.model_copy(update={"path": "shard-1"})
    artifacts.put_part(REF, PartManifest(name="shard-1", fingerprint=FINGERPRINT, files=(gone,)))
    stale = PartManifest(name="shard-2", fingerprint="cd" * 32, files=(entry,))
    with pytest.raises(StoreError, match="bound to"):
        artifacts.put_part(REF, stale)
    artifacts.store.put_bytes(f"{REF.prefix}parts/shard-2.json", dump(stale))
    artifacts.store.put_bytes(f"{REF.prefix}parts/shard-3.json", dump(good)[:30])
    artifacts.store.put_bytes(f"{REF.prefix}parts/shard-4.json", dump(good))  # under another's name
    assert artifacts.parts(REF) == {"shard-0": good}
    artifacts.fetch_files(REF, good.files, tmp_path)
    assert (tmp_path / "shard-0").read_bytes() == b"rows"
    artifacts.delete_parts(REF, ["shard-0"])
    assert artifacts.parts(REF) == {}
    assert artifacts.read_entry(REF, entry) == b"rows"


def test_delete_leaves_nothing(artifacts: Artifacts) -> None:
    finished(artifacts)
    assert artifacts.delete(REF) == 3
    assert list(artifacts.store.list()) == []
