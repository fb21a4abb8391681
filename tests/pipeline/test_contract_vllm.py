"""Asks the installed vLLM whether the contract is true: every claim "loads" or "refuses" is made to happen.

One process loads some 90 tiny drafts through vLLM's own loader, one change at a time. When this fails after an
upgrade, the contract has changed: write the new version's Engine in tasks/checks/contract.py.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tasks.checks.contract import VLLM_0_32
from tasks.recipe.settings import load_settings
from tests.cases.good import good_drafts
from tests.cases.mutations import MUTATIONS
from tests.cases.tiny import TinyDraft

CHILD = Path(__file__).with_name("contract_child.py")
TARGET = Path(__file__).resolve().parents[1] / "cases" / "_target"
LIMIT_S = 600

pytestmark = pytest.mark.vllm


def ask(lines: list[str], mode: str, log: Path) -> list[dict[str, str]]:
    """Return what the child process answers to each line."""
    python = load_settings().vllm_python
    with log.open("wb") as errors:
        done = subprocess.run(
            [str(python), str(CHILD), mode, str(TARGET)],
            input="\n".join(lines).encode(),
            stdout=subprocess.PIPE,
            stderr=errors,
            timeout=LIMIT_S,
            check=False,
        )
    found = [json.loads(line[7:]) for line in done.stdout.decode().splitlines() if line.startswith("ANSWER ")]
    assert done.returncode == 0 and len(found) == len(lines), log.read_text(errors="replace")[-3000:]
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("drafts")
    drafts = {f"good: {name}": draft for name, draft in good_drafts().items()}
    for mutation in MUTATIONS:
        if mutation.engine:
            drafts[mutation.name] = TinyDraft()
            mutation.change(drafts[mutation.name])
    paths = {name: str(draft.write(folder / str(at))) for at, (name, draft) in enumerate(drafts.items())}
    return dict(zip(paths, ask(list(paths.values()), "load", folder / "child.log"), strict=True))


def test_what_is_claimed_of_each_mutation_happens(answers: Mapping[str, dict[str, str]]) -> None:
    claimed = {mutation.name: mutation.engine for mutation in MUTATIONS if mutation.engine}

    assert {name: answers[name]["outcome"] for name in claimed} == claimed


def test_every_good_draft_loads(answers: Mapping[str, dict[str, str]]) -> None:
    refused = {
        name: answer["error"] for name, answer in answers.items() if answer["error"] and name.startswith("good: ")
    }

    assert refused == {}


def test_architectures_are_those_of_the_registry(tmp_path: Path) -> None:
    names = [*sorted(VLLM_0_32.architectures), "LlamaForCausalLM", "Qwen3ForCausalLM", "OPTForCausalLM", "NoSuchModel"]
    answers = {answer["name"]: answer for answer in ask(names, "registry", tmp_path / "child.log")}

    drafts = [name for name in VLLM_0_32.architectures if "Eagle3" in name]
    assert {name for name in drafts if answers[name]["registered"] != "yes"} == set()
    supports = {name: answers[name]["eagle3"] for name in ("LlamaForCausalLM", "Qwen3ForCausalLM", "OPTForCausalLM")}
    assert supports == {"LlamaForCausalLM": "yes", "Qwen3ForCausalLM": "yes", "OPTForCausalLM": "no"}
    assert answers["NoSuchModel"]["registered"] == "no"
    registered = set(answers["NoSuchModel"]["all"].split())
    assert registered >= VLLM_0_32.targets | VLLM_0_32.other_models
    assert {name for name in registered if name.startswith("Eagle3")} == {
        name for name in drafts if name.startswith("Eagle3")
    }
