"""Make the two environments, .venv (pipeline) and .venv-vllm, from pinned requirement files. Standard library only.

    ./infra/setup [--gpu] [--dev]      --gpu: the ordinary vllm wheel and CUDA's torch; --dev: the tools of ./infra/test

Each step leaves a stamp in its environment, the sha256 of what it installed; a step whose stamp is right is skipped.
The requirement files are compiled, never edited (drop --find-links where PIP_FIND_LINKS is not set):

    cd infra/requirements
    uv pip compile --python-version 3.11 --override overrides.txt --no-annotate --no-header \\
        --find-links "$PIP_FIND_LINKS" pipeline.in -o pipeline-cpu.txt          likewise vllm-cpu.in
    uv pip compile ... pipeline.in -o pipeline-gpu.txt                          likewise vllm-gpu.in
    uv pip compile ... -c pipeline-cpu.txt dev.in -o dev.txt
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "infra" / "requirements"
PIPELINE = ROOT / ".venv"
VLLM = ROOT / ".venv-vllm"
OLDEST_PYTHON = (3, 11)
OLDEST_UV = (0, 6, 9)  # the first with --torch-backend
NEEDED_BYTES = {"cpu": 8 * 1024**3, "gpu": 25 * 1024**3}  # both environments and what was downloaded for them
COMPILERS = ("c++", "g++", "clang++")
PLACE = "place.stamp"
LOG_LINES = 6
EXIT_IMPOSSIBLE = 2


class SetupError(Exception):
    """The environments cannot be made; its text is one line for a person."""


@dataclass(frozen=True)
class Step:
    """One installation: what goes where, and what its stamp depends on."""

    name: str
    venv: Path
    arguments: tuple[str, ...]
    depends_on: tuple[Path, ...]

    @property
    def stamp_path(self) -> Path:
        """Return the file that says what this step has installed."""
        return self.venv / f"{self.name}.stamp"

    def stamp(self) -> str:
        """Return the sha256 of the step: its arguments, its files, and the Python that it is for."""
        digest = hashlib.sha256(repr((self.arguments, sys.version_info[:2])).encode())
        for path in self.depends_on:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        """Return whether the environment holds just this."""
        return self.stamp_path.exists() and self.stamp_path.read_text() == self.stamp()


def steps(flavour: str, with_dev_tools: bool) -> list[Step]:
    """Return the installations in their order. flavour: cpu or gpu."""

    def from_file(name: str, venv: Path, file_name: str, *more: str) -> Step:
        path = REQUIREMENTS / file_name
        return Step(name, venv, ("-r", str(path.relative_to(ROOT)), *more), (path,))

    # The package of the small target names a runtime of its own that is not needed: only its model file is.
    wanted = [
        from_file("pipeline", PIPELINE, f"pipeline-{flavour}.txt"),
        from_file("target", PIPELINE, "target.txt", "--no-deps"),
        # Without build isolation nothing is downloaded: setuptools is among the pinned packages.
        Step("draftworks", PIPELINE, ("-e", ".", "--no-deps", "--no-build-isolation"), (ROOT / "pyproject.toml",)),
        from_file("vllm", VLLM, f"vllm-{flavour}.txt"),
    ]
    return [*wanted, from_file("dev", PIPELINE, "dev.txt")] if with_dev_tools else wanted


def require_python(version: tuple[int, ...] = tuple(sys.version_info[:2])) -> None:
    """Raise SetupError if this Python is too old."""
    if version < OLDEST_PYTHON:
        raise SetupError(f"needs Python 3.11 or newer, but {sys.executable} is {'.'.join(map(str, version))}")


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise SetupError if the disk of the folder is nearly full."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        gib = 1024**3
        raise SetupError(
            f"the disk of {folder} has {free / gib:.1f} GiB free, the environments need {needed_bytes / gib:.0f} GiB "
            "with their downloads. Free some space, or clone to another disk."
        )


def find_uv() -> str:
    """Return a usable uv: from PATH, or put into .venv with pip."""
    for candidate in (shutil.which("uv"), str(PIPELINE / "bin" / "uv")):
        if candidate and os.access(candidate, os.X_OK):
            reply = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout.split()
            if len(reply) > 1 and tuple(int(part) for part in reply[1].split(".")[:3] if part.isdigit()) >= OLDEST_UV:
                return candidate
    say("uv is not there: installing it into .venv")
    run([sys.executable, "-m", "venv", str(PIPELINE)], "make .venv (on Debian: apt-get install python3-venv)")
    run(
        [str(PIPELINE / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / "uv.txt")],
        "install uv",
    )
    return str(PIPELINE / "bin" / "uv")


def discard_unusable(venv: Path) -> None:
    """Remove an environment whose Python is gone, or that was made when the project lay elsewhere."""
    place = venv / PLACE
    was_moved = place.exists() and place.read_text() != str(ROOT)
    if venv.exists() and (was_moved or not (venv / "bin" / "python").exists()):
        say(f"{venv.name} is of another place or its Python is gone: making it again")
        shutil.rmtree(venv)


def install(uv: str, step: Step, flavour: str) -> None:
    """Carry out one step and leave its stamp."""
    if not step.venv.exists():
        run([uv, "venv", "-q", "--python", sys.executable, str(step.venv)], f"make {step.venv.name}")
    (step.venv / PLACE).write_text(str(ROOT))
    step.stamp_path.unlink(missing_ok=True)
    argv = [uv, "pip", "install", "--python", str(step.venv / "bin" / "python"), *step.arguments]
    argv += ["--overrides", str(REQUIREMENTS / "overrides.txt")]
    # The CPU build of torch is not in the ordinary index.
    if links := os.environ.get("PIP_FIND_LINKS"):
        argv += ["--find-links", links]
    elif flavour == "cpu":
        argv += ["--torch-backend", "cpu"]
    run(argv, f"install {step.name} into {step.venv.name}")
    step.stamp_path.write_text(step.stamp())


def run(argv: list[str], what: str) -> None:
    """Run a command to its end. Raises SetupError with its last lines, on one line."""
    ended = subprocess.run(
        argv,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        lines = [line.strip() for line in ended.stdout.splitlines() if line.strip()][-LOG_LINES:]
        raise SetupError(
            f"could not {what}: {Path(argv[0]).name} ended with {ended.returncode}, saying: {' | '.join(lines)}. "
            "If it could not reach the package index, check the network, or name a mirror in UV_DEFAULT_INDEX."
        )


def say(line: str) -> None:
    """Print one progress line."""
    print(f"setup: {line}", flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """Run the command line in the module's docstring."""
    parser = argparse.ArgumentParser(prog="infra/setup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the ordinary vllm wheel and CUDA's torch")
    parser.add_argument("--dev", action="store_true", help="also the tools of ./infra/test")
    options = parser.parse_args(arguments)
    flavour = "gpu" if options.gpu else "cpu"
    try:
        set_up(flavour, options.dev)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_IMPOSSIBLE
    return 0


def set_up(flavour: str, with_dev_tools: bool) -> None:
    """Carry out the steps that are not done. Raises SetupError."""
    require_python()
    root = os.open(ROOT, os.O_RDONLY)
    fcntl.flock(root, fcntl.LOCK_EX)  # until this process ends: a second set-up waits, then finds all done
    for venv in (PIPELINE, VLLM):
        discard_unusable(venv)
    to_do = [step for step in steps(flavour, with_dev_tools) if not step.is_done()]
    if not to_do:
        return
    if not PIPELINE.exists() or not VLLM.exists():
        require_space(ROOT, NEEDED_BYTES[flavour])
    if not any(shutil.which(compiler) for compiler in COMPILERS):
        say("note: no C++ compiler (g++ or clang++) found: vLLM needs enforce_eager here. Install g++ for full speed.")
    uv = find_uv()
    for step in to_do:
        started = time.monotonic()
        say(f"installing {step.name} into {step.venv.name} ...")
        install(uv, step, flavour)
        say(f"{step.name} is there ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
