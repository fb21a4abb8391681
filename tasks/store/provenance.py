"""Where an artifact comes from: command, commit, package versions, hardware."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.store.manifest import Provenance

PACKAGES = ("draftworks", "prefect", "torch", "transformers", "speculators", "safetensors", "boto3", "pyarrow")

_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")


@cache
def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def _packages() -> dict[str, str]:
    present = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return {name: present[name] for name in PACKAGES if name in present}


def _memory_gib() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f}"


def _gpu_models() -> str:
    """Return the models of the NVIDIA GPUs as their driver lists them; no GPU library is loaded."""
    lines = [line for path in sorted(_GPU_FOLDER.glob("*/information")) for line in path.read_text().splitlines()]
    return ", ".join(line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))


def hardware() -> dict[str, str]:
    """Return what this machine is, as far as it decides how fast work is."""
    return {
        "machine": platform.machine(),
        "cpus": str(os.cpu_count()),
        "memory_gib": _memory_gib(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "gpu_models": _gpu_models(),
    }


def collect_provenance(recipe: dict[str, Any], engine: dict[str, str]) -> Provenance:
    """Return the provenance of what this process makes now. recipe: the resolved recipe as plain JSON."""
    root = Path(__file__).resolve().parents[2]
    status = _git(root, "status", "--porcelain")
    return Provenance(
        argv=tuple(sys.argv),
        git_commit=_git(root, "rev-parse", "HEAD"),
        git_dirty=bool(status) if status is not None else None,
        packages=_packages(),
        engine=engine,
        hardware=hardware(),
        recipe=recipe,
    )
