"""Guards the arrows: every import contract, broken once on purpose in a copy of the tree, is caught."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tasks.recipe.settings import PROJECT_ROOT

# File to append to -> an import that breaks one contract.
BREACHES = {
    "flows/produce.py": "import infra.cli",
    "tasks/bench/compare.py": "import tasks.checks.verdict",
    "tasks/corpus/rows.py": "import prefect",
    "tasks/serving/wire.py": "import boto3",
    "tasks/recipe/form.py": "import httpx",
    "tasks/states/connector.py": "import tasks.errors",
}


def test_every_contract_catches_its_breach(tmp_path: Path) -> None:
    for folder in ("flows", "tasks", "infra"):
        shutil.copytree(PROJECT_ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT_ROOT / "pyproject.toml", tmp_path)
    for file, statement in BREACHES.items():
        path = tmp_path / file
        path.write_text(f"{path.read_text()}\n{statement}\n")
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    contracts = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert len(contracts) == len(BREACHES)
    assert f"{len(contracts)} broken" in done.stdout, done.stdout[-3000:]
