"""Guards `draftworks gc`: a dry run first, --yes deletes the same, scratch and embedded uploads, one JSON line."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from infra import leftovers
from infra.cli import app
from infra.daemon import Daemon
from infra.running import Running, write_running
from tasks.store.lease import hold_marker
from tasks.store.objects import ObjectStore, StoreLocation, connect
from tests.faults.servers import credentials, localbucket
from tests.unit.productions import Folder, Production, half_made, ref

BUCKET = "draftworks"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a home with an S3 server that `up` could have started."""
    folder = tmp_path_factory.mktemp("home")
    with credentials(), localbucket(folder) as endpoint:
        (folder / "s3").symlink_to(folder / "data")
        daemon = Daemon(name="s3", port=1, grace_s=1, boot="", pid=2**30, start=0, program="")
        write_running(folder, Running(s3=daemon, s3_endpoint=endpoint))
        yield folder


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ObjectStore:
    record = json.loads((home / "run" / "up.json").read_text())
    prefix = str(request.node.originalname)
    monkeypatch.setenv("DRAFTWORKS_HOME", str(home))
    monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", record["s3_endpoint"])
    monkeypatch.setenv("DRAFTWORKS_S3_BUCKET", BUCKET)
    monkeypatch.setenv("DRAFTWORKS_S3_PREFIX", prefix)
    monkeypatch.setenv("DRAFTWORKS_SCRATCH", str(home / "scratch" / prefix))
    opened = connect(StoreLocation(record["s3_endpoint"], BUCKET, prefix))
    opened.create_bucket()
    return opened


@pytest.fixture
def folder(home: Path, store: ObjectStore) -> Folder:
    return Folder(store, home / "data")


def gc(*options: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["gc", "--json", *options])
    assert done.exit_code == 0, done.output
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**record, "output": " ".join(done.stdout.split())}


def age(path: Path, hours: float) -> None:
    then = time.time() - 3600 * hours
    for found in (path, *path.rglob("*")):
        os.utime(found, (then, then))


def test_the_first_look_deletes_nothing_and_yes_deletes_what_it_showed(store: ObjectStore, folder: Folder) -> None:
    made = Production("a").make(store)
    before = folder.stored()
    shown = gc()
    assert not shown["deleted"] and folder.stored() == before
    assert "nothing was deleted; run again with --yes" in shown["output"]
    (row,) = shown["removals"]
    assert (row["rule"], row["what"], row["kept_because"]) == ("states", str(made.ref("states")), None)
    assert shown["bytes"] == row["bytes"] > 1000
    assert shown["kept"]["artifacts"] == 7
    done = gc("--yes")
    assert done["deleted"] and done["removals"] == shown["removals"] and done["bytes"] == shown["bytes"]
    assert "freed: " in done["output"]
    again = gc("--yes")
    assert again["removals"] == [] and "nothing to delete" in again["output"]


def test_the_options_change_what_is_kept(store: ObjectStore, folder: Folder) -> None:
    Production("a").make(store, "states")
    half_made(store, ref("corpus", "half"))
    folder.age(10)
    assert gc()["removals"] == []
    assert [row["rule"] for row in gc("--older-than-hours", "9")["removals"]] == ["unfinished"]
    assert len(gc("--older-than-hours", "9", "--keep-runs", "0")["removals"]) == 8


def test_old_scratch_folders_go_unless_a_run_uses_them(store: ObjectStore, home: Path) -> None:
    scratch = home / "scratch" / store.location.prefix
    refs = {name: ref("states", name) for name in ("old", "used", "young")}
    folders = {name: scratch / "states" / found.fingerprint[:16] for name, found in refs.items()}
    for place in (*folders.values(), scratch / "servers" / "0123456789abcdef", scratch / "states" / "mine"):
        (place / "files").mkdir(parents=True)
        (place / "files" / "states-00000.safetensors").write_bytes(b"x" * 4000)
    (scratch / "states" / "fedcba9876543210").symlink_to(scratch / "servers")
    age(scratch, 25)
    age(folders["young"], 1)
    with hold_marker(store, [refs["used"]]):
        (row,) = gc()["removals"]
        assert (row["rule"], row["what"], row["bytes"]) == ("scratch", str(folders["old"]), 4000)
        assert gc("--yes")["bytes"] == 4000
    assert {place.name for place in (scratch / "states").iterdir()} == {
        folders["used"].name,
        folders["young"].name,
        "mine",
        "fedcba9876543210",
    }
    assert (scratch / "servers" / "0123456789abcdef" / "files").is_dir()


def test_a_scratch_folder_that_is_used_after_the_look_stays(store: ObjectStore, tmp_path: Path) -> None:
    one, other = ref("states", "one"), ref("states", "other")
    for found in (one, other):
        (tmp_path / "states" / found.fingerprint[:16]).mkdir(parents=True)
    age(tmp_path, 25)
    planned = list(leftovers.scratch_removals(tmp_path, [], 3600.0))
    assert len(planned) == 2
    (tmp_path / "states" / other.fingerprint[:16] / "new").touch()
    kept = leftovers.remove_leftovers(planned, lambda: [one], 3600.0)
    assert [outcome.kept_because for outcome in kept] == ["a run uses it now"] * 2


def test_half_sent_objects_of_the_embedded_server_go(store: ObjectStore, home: Path) -> None:
    endpoint, prefix = store.location.endpoint, store.location.prefix
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    ours, theirs = f"{prefix}/{ref('states', 'a').prefix}0.bin", f"{prefix}/prompts/mine.bin"
    for key in (ours, theirs):
        upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 3000)
    client.close()
    temporary = home / "s3" / BUCKET / prefix / ref("states", "b").prefix / ".localbucket-abc"
    temporary.parent.mkdir(parents=True)
    temporary.write_bytes(b"x" * 500)
    assert gc("--yes")["removals"] == []
    age(home / "data" / leftovers.UPLOADS_FOLDER, 25)
    age(temporary, 25)
    rows = gc("--yes")["removals"]
    assert {(row["rule"], row["what"]) for row in rows} == {("upload", f"parts of {ours}"), ("upload", str(temporary))}
    assert not temporary.exists()
    left = (home / "data" / leftovers.UPLOADS_FOLDER).glob(f"*/{leftovers.UPLOAD_RECORD}")
    assert [json.loads(path.read_text())["key"] for path in left] == [theirs]


def test_without_a_store_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.errors import RecipeError

    monkeypatch.setenv("DRAFTWORKS_HOME", str(tmp_path))
    for name in ("DRAFTWORKS_S3_ENDPOINT", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["gc"])
    assert isinstance(result.exception, RecipeError) and "draftworks up" in str(result.exception)


def test_the_help_explains_the_rules() -> None:
    text = " ".join(CliRunner().invoke(app, ["gc", "--help"]).stdout.split())
    for words in ("hidden states", "champions", "running run", "nothing is deleted"):
        assert words in text
