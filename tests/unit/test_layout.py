"""Guards decisions about the tree: sizes, light imports, the top level, deployments, documented verbs."""

import ast
import subprocess
import sys
import tomllib

import pytest
import yaml

from infra.cli import app
from tasks.recipe.settings import PROJECT_ROOT, Settings

PRODUCT = [path for folder in ("flows", "tasks", "infra") for path in sorted((PROJECT_ROOT / folder).rglob("*.py"))]
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", "flows", "tasks", "deployments", "infra", "tests"}
MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 40
# A little over is allowed where a split would hide one idea; each with its reason.
LONGER = {
    "tasks/drafting/trainer.py": "one child process, read from top to bottom",
}
HEAVY = ("torch", "vllm", "transformers", "matplotlib", "speculators", "datasets", "pyarrow")


def tracked(pattern: str = "") -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern or "."], cwd=PROJECT_ROOT, capture_output=True, text=True)
    return listed.stdout.splitlines()


def test_the_top_level_is_fixed() -> None:
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_files_and_functions_stay_small() -> None:
    too_long = []
    for path in PRODUCT:
        name = str(path.relative_to(PROJECT_ROOT))
        text = path.read_text()
        if len(text.splitlines()) > MAX_FILE_LINES and name not in LONGER:
            too_long.append(f"{name}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    too_long.append(f"{name}: {node.name} has {lines} lines")
    assert too_long == []


@pytest.mark.parametrize("module", ["infra.cli", "tasks.stage", "tasks.checks.draft", "tasks.serving.client"])
def test_importing_stays_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_does_not_wait_for_prefect() -> None:
    code = "import sys, infra.cli; print('prefect' in sys.modules, 'boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_every_deployment_has_the_name_of_its_flow_and_loads() -> None:
    deployments = yaml.safe_load((PROJECT_ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    code = "import importlib, sys; m, f = sys.argv[1].split(':'); print(getattr(importlib.import_module(m), f).name)"
    for deployment in deployments:
        done = subprocess.run(
            [sys.executable, "-c", code, deployment["entrypoint"]],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == deployment["name"]


def test_the_readme_names_every_verb_setting_and_file() -> None:
    readme = (PROJECT_ROOT / "README.md").read_text()
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert {"produce", "demo", "up", "down", "check", "doctor"} <= set(verbs)
    for verb in verbs:
        assert f"`draftworks {verb}" in readme or f"`{verb}`" in readme, verb
    for name in Settings.model_fields:
        assert f"_{name.upper()}`" in readme, name
    unnamed = [path.name for path in PRODUCT if path.name != "__init__.py" and f" {path.name} " not in readme]
    assert unnamed == []


def test_requirements_name_no_host() -> None:
    for path in (PROJECT_ROOT / "infra" / "requirements").iterdir():
        assert "://" not in path.read_text(), path.name


def test_the_package_asks_for_what_the_requirements_pin() -> None:
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]
    pinned = (PROJECT_ROOT / "infra" / "requirements" / "pipeline-cpu.txt").read_text()
    for requirement in project["dependencies"]:
        name = requirement.split("=")[0].split(">")[0].split("<")[0].strip()
        assert f"\n{name}==" in f"\n{pinned}", name
