"""Guards bad input of the store: wrong servers, buckets, regions and clocks, objects that vanish, full disks.

Each is one error that says what was seen, what was expected and what to do, and nothing half-made stays.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.errors import ArtifactCorrupt, ArtifactMissing, StoreError, StoreRefused, StoreUnavailable
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import FileEntry, PartManifest, dump
from tasks.store.objects import ObjectStore, StoreLocation, connect
from tests.faults.proxy import Fault, Request, fault_proxy
from tests.faults.servers import FAST, credentials, localbucket, open_store
from tests.faults.stand_ins import Answer, answering, error_body

MIB = 1024 * 1024
REF = ArtifactRef(kind="corpus", fingerprint="ab" * 32)
HOUR_S = 3600.0


@pytest.fixture(scope="module", autouse=True)
def _credentials() -> Iterator[None]:
    with credentials():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("localbucket")
    with localbucket(folder) as endpoint:
        yield endpoint, folder / "data"


def always(status: int, body: bytes) -> Callable[[str, str, bytes], Answer]:
    return lambda method, path, sent: (status, body)


def uses(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        store.check_bucket,
        store.canary,
        store.probe,
        lambda: list(store.list()),
        lambda: store.put_bytes("f", b""),
    ]


def test_a_missing_bucket_is_made_by_nothing_but_create_bucket(server: tuple[str, Path], tmp_path: Path) -> None:
    store = connect(StoreLocation(server[0], "never-made", "p"), FAST)
    (tmp_path / "large").write_bytes(bytes(6 * MIB))
    artifacts = Artifacts(store)
    more: list[Callable[[], object]] = [
        lambda: store.put_file(tmp_path / "large", "f"),
        lambda: artifacts.find(REF),
        lambda: artifacts.put_bytes(REF, "a", b""),
        lambda: artifacts.parts(REF),
    ]
    for use in [*uses(store), *more]:
        with pytest.raises(StoreRefused, match=r"NoSuchBucket.*make it with `draftworks up`.*s3 mb s3://never-made"):
            use()
    assert not (server[1] / "never-made").exists()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>hi</html>"), (200, b""), (404, b"<html>no"), (404, b""), (405, b"{}"), (400, b"<html>"), (403, b"")],
)
def test_a_web_server_is_no_s3_server(status: int, body: bytes) -> None:
    with answering(always(status, body)) as (endpoint, asked):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreRefused, match=r"no S3 error.*path-style|endpoint is an S3 server|endpoint's URL"):
            store.check_bucket()
        assert len(asked) == 1
        with pytest.raises(StoreError):
            store.canary()


def test_a_web_server_with_a_page_for_everything_is_told_soon() -> None:
    with answering(always(200, b"<html>not closed<br>")) as (endpoint, asked):
        with pytest.raises(StoreUnavailable, match="or is no S3 server"):
            connect(StoreLocation(endpoint, "bucket"), FAST).check_bucket()
        assert len(asked) == 2  # a real server may answer like this in a bad moment


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "SecondLevelDomainForbidden"),
        (403, "PathStyleDomainForbidden"),
        (403, "InvalidPathAccess"),
        (404, "NoSuchKey"),  # a bucket's own address as the endpoint: the path's first part is taken for a key
    ],
)
def test_a_server_that_knows_no_path_style_is_told(status: int, code: str) -> None:
    with answering(always(status, error_body(code))) as (endpoint, asked):
        with pytest.raises(StoreRefused, match=rf"{code}.*path-style, {endpoint}/bucket/key.*DRAFTWORKS_S3_ENDPOINT"):
            connect(StoreLocation(endpoint, "bucket"), FAST).check_bucket()
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(301, "PermanentRedirect"), (307, "TemporaryRedirect"), (400, "AuthorizationHeaderMalformed")]
)
@pytest.mark.parametrize("in_header", [True, False])
def test_a_bucket_in_another_region_names_that_region(status: int, code: str, in_header: bool) -> None:
    body = error_body(code, "" if in_header else "<Region>eu-central-1</Region>")
    headers = {"x-amz-bucket-region": "eu-central-1"} if in_header else None
    with answering(always(status, body), headers=headers) as (endpoint, asked):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        for number, use in enumerate(uses(store), start=1):
            with pytest.raises(StoreRefused, match=r"asked was us-east-1: set DRAFTWORKS_S3_REGION=eu-central-1"):
                use()
            assert len(asked) == number  # told at once: not followed, not tried again


def test_a_server_that_sends_us_elsewhere_names_the_place() -> None:
    body = error_body("PermanentRedirect", "<Endpoint>bucket.s3.example.org</Endpoint>")
    with answering(always(301, body)) as (endpoint, asked):
        with pytest.raises(StoreRefused, match=r"points to bucket\.s3\.example\.org: set DRAFTWORKS_S3_ENDPOINT"):
            connect(StoreLocation(endpoint, "bucket"), FAST).check_bucket()
        assert len(asked) == 1
    with answering(always(302, b"moved"), headers={"Location": "https://s3.example.org/"}) as (endpoint, asked):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        with pytest.raises(StoreRefused, match=r"points to https://s3\.example\.org/"):
            store.get_bytes("f")
        assert len(asked) == 1


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "AccessDenied", "SignatureDoesNotMatch"])
def test_clocks_that_differ_are_both_named(code: str, ahead_s: float) -> None:
    with answering(always(403, error_body(code)), clock_ahead_s=ahead_s) as (endpoint, asked):
        store = connect(StoreLocation(endpoint, "bucket"), FAST)
        message = rf"{code}.*this machine's clock says 2\S+ \S+ UTC, the server's 2\S+ \S+ UTC, (3599|360[01]) s apart"
        for number, use in enumerate(uses(store), start=1):
            with pytest.raises(StoreRefused, match=message):
                use()
            assert len(asked) == number
        with pytest.raises(StoreRefused, match="HTTP 403.*s apart"):
            store.size("f")  # HEAD: no code, but the date is there


def test_a_request_that_was_late_once_is_sent_again(server: tuple[str, Path]) -> None:
    late: list[str] = []

    def plan(request: Request) -> Fault | None:
        if late:
            return None
        late.append(request.path)
        return Fault("answer", status=403, code="RequestTimeTooSkewed")

    with fault_proxy(server[0], plan) as proxy:
        store = connect(StoreLocation(proxy.endpoint, "store-tests", "late"), FAST)
        open_store(server[0], "late")
        store.put_bytes("f", b"x")
        assert store.get_bytes("f") == b"x"
        assert proxy.done.total() == 1


def test_a_server_that_always_finds_requests_late_is_named() -> None:
    with answering(always(403, error_body("RequestTimeTooSkewed"))) as (endpoint, asked):
        with pytest.raises(
            StoreUnavailable, match="RequestTimeTooSkewed.*the clocks agree, so the request arrived late"
        ):
            connect(StoreLocation(endpoint, "bucket"), FAST).put_bytes("f", b"x")
        assert len(asked) == FAST.attempts


def test_parts_of_a_newer_version_are_refused_and_those_of_another_artifact_left_alone(
    server: tuple[str, Path],
) -> None:
    artifacts = Artifacts(open_store(server[0], "parts"))
    part = PartManifest(name="0", fingerprint="cd" * 32, files=())
    with pytest.raises(StoreError, match=r"part 0 of corpus/abab.*bound to cdcdcdcdcdcd; make it anew"):
        artifacts.put_part(REF, part)
    artifacts.store.put_bytes(f"{REF.prefix}parts/0.json", dump(part))
    assert artifacts.parts(REF) == {}
    artifacts.store.put_bytes(f"{REF.prefix}parts/1.json", dump(part.model_copy(update={"format_version": 2})))
    with pytest.raises(StoreError, match=r"parts/1\.json: format version 2, .*reads up to 1; upgrade Draftworks"):
        artifacts.parts(REF)


def three_files(artifacts: Artifacts, size: int) -> tuple[FileEntry, ...]:
    return tuple(artifacts.put_bytes(REF, f"{name}.bin", os.urandom(size)) for name in "abc")


def test_an_object_that_is_deleted_after_its_manifest_was_read(server: tuple[str, Path], tmp_path: Path) -> None:
    artifacts = Artifacts(open_store(server[0], "deleted"))
    entries = three_files(artifacts, 1000)
    artifacts.fetch_files(REF, entries[:1], tmp_path)
    artifacts.store.delete([REF.prefix + "b.bin"])
    with pytest.raises(ArtifactMissing, match=r"b\.bin .*NoSuchKey.*was deleted: run the stage that makes it"):
        artifacts.fetch_files(REF, entries, tmp_path)
    with pytest.raises(ArtifactMissing, match="was deleted"):
        artifacts.read_entry(REF, entries[1])
    assert (tmp_path / "a.bin").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name not in ("a.bin", "c.bin")]


@pytest.mark.parametrize("then", ["deleted", "replaced"])
def test_an_object_that_changes_in_the_middle_of_a_download(
    server: tuple[str, Path], tmp_path: Path, then: str
) -> None:
    direct = Artifacts(open_store(server[0], f"middle-{then}"))
    (entry,) = three_files(direct, 40 * MIB)[:1]
    (tmp_path / "a.bin").write_bytes(b"from before")
    num_asked = 0

    def plan(request: Request) -> Fault | None:
        nonlocal num_asked
        num_asked += request.path.endswith("a.bin")
        if num_asked == 4 and then == "deleted":
            direct.store.delete([REF.prefix + "a.bin"])
        elif num_asked == 4:
            direct.store.put_bytes(REF.prefix + "a.bin", os.urandom(entry.size_bytes))
        return None

    with fault_proxy(server[0], plan) as proxy:
        artifacts = Artifacts(connect(StoreLocation(proxy.endpoint, "store-tests", f"middle-{then}"), FAST))
        expected = ArtifactMissing if then == "deleted" else ArtifactCorrupt
        with pytest.raises(expected, match=r"a\.bin.*(run its stage again|run the stage that makes it)"):
            artifacts.fetch_files(REF, [entry], tmp_path)
    assert num_asked >= 4
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"from before"


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Yield a file system of that many bytes; skip the test where it cannot be had."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(MIB // 4))


def test_a_disk_that_fills_up_in_the_middle_keeps_what_was_made(server: tuple[str, Path], tmp_path: Path) -> None:
    direct = Artifacts(open_store(server[0], "full"))
    entries = (
        direct.put_bytes(REF, "small.bin", os.urandom(MIB)),
        direct.put_bytes(REF, "large.bin", os.urandom(40 * MIB)),
    )
    num_asked = 0

    with small_disk(tmp_path / "disk", 48 * MIB) as folder:

        def plan(request: Request) -> Fault | None:
            nonlocal num_asked
            num_asked += request.path.endswith("large.bin")
            if num_asked == 3:
                fill(folder / "somebody-elses")
            return None

        direct.fetch_files(REF, entries[:1], folder)
        first = (folder / "small.bin").stat().st_ino
        with fault_proxy(server[0], plan) as proxy:
            through = Artifacts(connect(StoreLocation(proxy.endpoint, "store-tests", "full"), FAST))
            with pytest.raises(StoreError, match=r"No space left on device.*takes 41943040 bytes: free space, or set"):
                through.fetch_files(REF, entries, folder)
            with pytest.raises(StoreError, match=r"takes 41943040 bytes, \d+ are free there; free space, or set"):
                through.fetch_files(REF, entries, folder)
        assert sorted(path.name for path in folder.iterdir()) == ["small.bin", "somebody-elses"]
        (folder / "somebody-elses").unlink()
        direct.fetch_files(REF, entries, folder)
        assert (folder / "small.bin").stat().st_ino == first
