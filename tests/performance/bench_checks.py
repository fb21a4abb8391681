"""Measures the check of a draft beside a plain read of the same file.

    python -m tests.performance.bench_checks [--repeats 5]

Full level streams every weight once (finiteness, constants, sha256); the plain read only reads. Each runs in a process
of its own with the file out of the page cache, five in a row after one that does not count: in turns, a plain read
that follows a check is up to three times slower than one that follows a read (ext4, Linux 6.18), which would flatter
the check. The same over S3: a check beside boto3's own download of the file. Prints one JSON line: MiB/s (medians),
their ratios, peak memory of the check above idle in MiB, and the seconds of a header-level check of a sparse file of
4.6 GB.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import numpy as np

from tasks.checks.draft import check_draft
from tasks.checks.source import LocalFolder, ObjectPrefix
from tasks.store.objects import StoreLocation, connect
from tests.faults.servers import credentials, localbucket
from tests.unit.test_checks_inventory import write_draft

MIB = 1024 * 1024
HIDDEN, INTERMEDIATE, WHOLE, REDUCED, HEADS = 2048, 8192, 65536, 32768, 32
SHAPES = {
    "embed_tokens.weight": (WHOLE, HIDDEN),
    "lm_head.weight": (REDUCED, HIDDEN),
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "norm.weight": (HIDDEN,),
    **{f"layers.0.{name}.weight": (HIDDEN,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
    **{f"layers.0.self_attn.{name}_proj.weight": (HIDDEN, 2 * HIDDEN) for name in "qkv"},
    "layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "layers.0.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
    "layers.0.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
    "layers.0.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
}


def write_weights(folder: Path) -> Path:
    """Write a draft of about 600 MB with ordinary values, and return its weight file."""
    header: dict[str, object] = {"d2t": {"dtype": "I64", "shape": [REDUCED], "data_offsets": [0, 8 * REDUCED]}}
    position = 8 * REDUCED
    for name, shape in SHAPES.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(8 * REDUCED))
        for shape in SHAPES.values():
            values = generator.normal(0, 0.02, shape).astype(np.float32)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return path


def peak_kib() -> int:
    """Return this process's peak resident size; getrusage would count the parent that it was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def child(what: str, folder: Path) -> None:
    """Do one check or one plain read; print its seconds and peak memory above idle."""
    idle, started = peak_kib(), time.monotonic()
    if what == "read":
        with (folder / "model.safetensors").open("rb", buffering=0) as file:
            buffer = bytearray(8 * MIB)
            while file.readinto(buffer):
                pass
    else:
        check_draft(LocalFolder(folder), level="full" if what == "full" else "header")
    seconds = time.monotonic() - started
    peak = (peak_kib() - idle) / 1024
    sys.stdout.write(json.dumps({"seconds": seconds, "peak_mib": peak}))


def measured(what: str, folder: Path) -> dict[str, float]:
    """Run one child with the file out of the page cache."""
    with (folder / "model.safetensors").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-m", "tests.performance.bench_checks", "--child", what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Return the median of the seconds that some work takes."""
    taken = []
    for _ in range(repeats):
        started = time.monotonic()
        work()
        taken.append(time.monotonic() - started)
    return statistics.median(taken)


def over_s3(folder: Path, repeats: int) -> dict[str, float]:
    """Return MiB/s of boto3's download and of a full check, both from one localbucket server."""
    size = (folder / "model.safetensors").stat().st_size / MIB
    (folder / "s3").mkdir()
    with credentials(), localbucket(folder / "s3") as endpoint:
        store = connect(StoreLocation(endpoint, "bench"))
        store.create_bucket()
        for name in ("config.json", "model.safetensors"):
            store.put_file(folder / name, f"d/{name}")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        copy = str(folder / "copy")
        read = seconds_of(lambda: client.download_file("bench", "d/model.safetensors", copy), repeats)
        full = seconds_of(lambda: check_draft(ObjectPrefix(store, "d"), level="full"), repeats)
    return {
        "s3_download_mib_per_s": round(size / read),
        "s3_full_mib_per_s": round(size / full),
        "s3_ratio": round(read / full, 3),
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs=2)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child[0], Path(asked.child[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        size = write_weights(folder).stat().st_size / MIB
        (folder / "config.json").write_text("{}")
        runs = {what: [measured(what, folder) for _ in range(asked.repeats + 1)][1:] for what in ("read", "full")}
        store = over_s3(folder, asked.repeats)
        large = write_draft(folder / "large")
        header = [measured("header", large)["seconds"] for _ in range(asked.repeats)]
    speed = {what: size / statistics.median(run["seconds"] for run in found) for what, found in runs.items()}
    report = {
        **store,
        "read_mib_per_s": round(speed["read"]),
        "full_mib_per_s": round(speed["full"]),
        "ratio": round(speed["full"] / speed["read"], 3),
        "full_peak_mib": round(max(run["peak_mib"] for run in runs["full"])),
        "header_s": round(statistics.median(header), 3),
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
