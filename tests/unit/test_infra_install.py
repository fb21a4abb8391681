"""Guards the set-up: what is stamped is skipped, what changed is not, and each fault is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra import install
from tasks.recipe.settings import PROJECT_ROOT

SETUP = PROJECT_ROOT / "infra" / "setup"


def test_requirements_are_pinned_and_name_no_host() -> None:
    for path in sorted(install.REQUIREMENTS.glob("*.txt")):
        if path.name == "overrides.txt":
            continue
        for line in path.read_text().splitlines():
            assert "==" in line and "/" not in line and "--" not in line, f"{path.name}: {line}"


def test_both_environments_share_no_torch_companions() -> None:
    for path in install.REQUIREMENTS.glob("*-*.txt"):
        names = {line.split("==")[0] for line in path.read_text().splitlines()}
        assert not names & {"torchvision", "torchaudio", "torchcodec"}, path.name


def test_gpu_differs_from_cpu_in_torch_only() -> None:
    def pins(name: str) -> set[str]:
        return set((install.REQUIREMENTS / name).read_text().splitlines())

    lost = pins("pipeline-cpu.txt") - pins("pipeline-gpu.txt")
    assert {line.split("==")[0] for line in lost} == {"torch"}


@pytest.fixture
def step(tmp_path: Path) -> install.Step:
    requirements = tmp_path / "some.txt"
    requirements.write_text("one==1\n")
    (tmp_path / "venv").mkdir()
    return install.Step("some", tmp_path / "venv", ("-r", "some.txt"), (requirements,))


def test_a_stamped_step_is_done_until_its_file_changes(step: install.Step) -> None:
    assert not step.is_done()
    step.stamp_path.write_text(step.stamp())
    assert step.is_done()
    step.depends_on[0].write_text("one==2\n")
    assert not step.is_done()


def test_an_environment_without_its_python_is_discarded(step: install.Step) -> None:
    step.stamp_path.write_text(step.stamp())
    install.discard_unusable(step.venv)
    assert not step.venv.exists()


def test_an_environment_of_a_moved_project_is_discarded(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    install.discard_unusable(venv)
    assert venv.exists()
    (venv / install.PLACE).write_text("/elsewhere")
    install.discard_unusable(venv)
    assert not venv.exists()


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(install.SetupError, match=r"has [\d.]+ GiB free, the environments need 1048576 GiB") as caught:
        install.require_space(tmp_path, 1024**5)
    assert "\n" not in str(caught.value)


def test_an_old_python_is_one_line() -> None:
    with pytest.raises(install.SetupError, match=r"needs Python 3.11 or newer, but .* is 3.10"):
        install.require_python((3, 10))


def test_no_python_at_all_is_one_line() -> None:
    ended = subprocess.run(
        [SETUP], env={**os.environ, "DRAFTWORKS_PYTHON": "/bin/false"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == install.EXIT_IMPOSSIBLE
    assert ended.stderr.startswith("setup: needs Python 3.11 or newer") and ended.stderr.count("\n") == 1


def test_a_command_that_ends_badly_is_one_line_with_its_own_words() -> None:
    script = "import sys; print('no route to the index', file=sys.stderr); sys.exit(7)"
    with pytest.raises(install.SetupError, match="could not install it: .* ended with 7, saying: no route") as caught:
        install.run([sys.executable, "-c", script], "install it")
    assert "\n" not in str(caught.value)


def test_torch_for_the_cpu_is_found_in_either_way(step: install.Step, monkeypatch: pytest.MonkeyPatch) -> None:
    told = step.venv.parent / "told"
    uv = step.venv.parent / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" >{told}\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PIP_FIND_LINKS", "/some/wheels")
    install.install(str(uv), step, "cpu")
    assert told.read_text().endswith("--find-links /some/wheels\n")
    monkeypatch.delenv("PIP_FIND_LINKS")
    install.install(str(uv), step, "cpu")
    assert told.read_text().endswith("--torch-backend cpu\n")
    install.install(str(uv), step, "gpu")
    assert "torch-backend" not in told.read_text()
    assert step.is_done()
