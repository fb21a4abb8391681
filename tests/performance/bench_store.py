"""Measures the store beside boto3's own transfer manager, and the listing of a large artifact, on one localbucket.

    python -m tests.performance.bench_store [--only transfers|listing] [--repeats 5] [--mib 1024] [--flat] [--files N]

Ours verifies sha256; boto3's does not. Every transfer runs in a process of its own, the two
take turns. Prints one JSON line: seconds (medians), throughput ratio ours / boto3's, peak memory above idle in MiB.
--flat adds the peak memory of ours at 256 MiB and 4 GiB.

The listing is Artifacts.find of one artifact of so many files: its manifest read and validated, every file's size
compared with the server's list. client_cpu_seconds is our share of it; the rest is the server's.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3

from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.manifest import Cost, FileEntry, Manifest, Provenance
from tasks.store.objects import StoreLocation, connect
from tests.faults.servers import credentials, localbucket

MIB = 1024 * 1024
BUCKET, KEY = "bench", "file.bin"
ARMS = ("draftworks", "boto3")


def peak_mib() -> float:
    """Return the peak resident size of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(arm: str, direction: str, endpoint: str, path: Path, sha256: str) -> None:
    """Do one transfer; print seconds and peak memory above idle."""
    store = connect(StoreLocation(endpoint, BUCKET))
    store.check_bucket()
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.head_bucket(Bucket=BUCKET)
    size = int(os.environ["BENCH_BYTES"])
    idle, started = peak_mib(), time.monotonic()
    if arm == "draftworks" and direction == "up":
        assert store.put_file(path, KEY) == (size, sha256)
    elif arm == "draftworks":
        store.get_file(KEY, path, size_bytes=size, sha256=sha256)
    elif direction == "up":
        client.upload_file(str(path), BUCKET, KEY)
    else:
        client.download_file(BUCKET, KEY, str(path))
    seconds = time.monotonic() - started
    sys.stdout.write(json.dumps({"seconds": seconds, "peak_mib": peak_mib() - idle}))


def transfer(arm: str, direction: str, endpoint: str, path: Path, size: int, sha256: str) -> dict[str, float]:
    """Run one transfer in a process of its own."""
    command = [sys.executable, "-m", "tests.performance.bench_store", "--child", arm, direction, endpoint]
    environment = os.environ | {"BENCH_BYTES": str(size)}
    done = subprocess.run([*command, str(path), sha256], capture_output=True, text=True, check=True, env=environment)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def make_file(path: Path, size: int) -> str:
    """Write a file of random bytes; return its sha256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size // MIB):
            block = os.urandom(MIB)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def one_size(endpoint: str, folder: Path, mib: int, repeats: int, arms: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return medians of seconds and maxima of memory per arm and direction."""
    source, target = folder / "source", folder / "target"
    sha256 = make_file(source, mib * MIB)
    seen: dict[str, list[dict[str, float]]] = {}
    for repeat in range(repeats):
        for arm in arms if repeat % 2 == 0 else arms[::-1]:
            for direction, path in (("up", source), ("down", target)):
                result = transfer(arm, direction, endpoint, path, mib * MIB, sha256)
                seen.setdefault(f"{arm} {direction}", []).append(result)
            target.unlink()
    source.unlink()
    return {
        name: {
            "seconds": round(statistics.median(result["seconds"] for result in results), 3),
            "peak_mib": round(max(result["peak_mib"] for result in results), 1),
        }
        for name, results in seen.items()
    }


def listing(endpoint: str, data: Path, num_files: int, repeats: int) -> dict[str, float]:
    """Return medians of what it takes to find an artifact; its files are laid into the server's folder directly."""
    ref = ArtifactRef(kind="corpus", fingerprint="ab" * 32)
    folder = data / BUCKET / ref.prefix
    (folder / "shards").mkdir(parents=True)
    entries = []
    for number in range(num_files):
        name, content = f"shards/{number:05d}.bin", str(number).encode()
        (folder / name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        entries.append(FileEntry(path=name, size_bytes=len(content), sha256=sha256))
    artifacts = Artifacts(connect(StoreLocation(endpoint, BUCKET)))
    artifacts.finish(manifest_of(ref, tuple(entries)))
    seen: list[tuple[float, float]] = []
    for _ in range(repeats):
        started, used = time.monotonic(), time.process_time()
        assert artifacts.find(ref) is not None
        seen.append((time.monotonic() - started, time.process_time() - used))
    shutil.rmtree(folder)
    seconds, cpu_seconds = (statistics.median(column) for column in zip(*seen, strict=True))
    return {"files": num_files, "seconds": round(seconds, 3), "client_cpu_seconds": round(cpu_seconds, 3)}


def manifest_of(ref: ArtifactRef, files: tuple[FileEntry, ...]) -> Manifest:
    """Return a manifest of these files with nothing else in it."""
    return Manifest(
        kind=ref.kind,
        fingerprint=ref.fingerprint,
        stage_version=1,
        inputs={},
        files=files,
        account=None,
        cost=Cost(seconds=0),
        provenance=Provenance(argv=(), git_commit=None, git_dirty=None, packages={}, engine={}, hardware={}, recipe={}),
        facts={},
        created="",
    )


def transfers(endpoint: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return medians per arm and direction, and how ours compare with boto3's."""
    seen = one_size(endpoint, folder, options.mib, options.repeats, ARMS)
    report: dict[str, object] = {"mib": options.mib, **seen}
    for direction in ("up", "down"):
        ratio = seen[f"boto3 {direction}"]["seconds"] / seen[f"draftworks {direction}"]["seconds"]
        report[f"ratio {direction}"] = round(ratio, 3)
    for mib in (256, 4096) if options.flat else ():
        report[f"{mib} MiB"] = one_size(endpoint, folder, mib, 1, ARMS[:1])
    return report


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("transfers", "listing"))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--flat", action="store_true")
    parser.add_argument("--child", nargs=5)
    options = parser.parse_args()
    if options.child:
        arm, direction, endpoint, path, sha256 = options.child
        child(arm, direction, endpoint, Path(path), sha256)
        return
    with credentials(), tempfile.TemporaryDirectory() as name, localbucket(Path(name)) as endpoint:
        connect(StoreLocation(endpoint, BUCKET)).create_bucket()
        report: dict[str, object] = {"repeats": options.repeats}
        if options.only != "transfers":
            report["listing"] = listing(endpoint, Path(name) / "data", options.files, options.repeats)
        if options.only != "listing":
            report |= transfers(endpoint, Path(name), options)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
