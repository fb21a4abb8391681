"""Loads drafts through vLLM's own loader, one after another, and prints what it did; runs under vLLM's Python.

python contract_child.py TARGET < folders    one JSON line for each: {"folder", "outcome", "error"}
"""
# ruff: noqa: TID253  this file only ever runs inside vLLM's environment

import json
import os
import sys
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="CRITICAL")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.model_executor.models.registry import ModelRegistry

# What a draft that cannot be loaded makes vLLM raise; anything else is a fault of this script and ends it.
REFUSALS = (ValueError, AttributeError, AssertionError, KeyError, TypeError, RuntimeError, IndexError, OSError)


# vLLM waits and reads a refused config again; a local file does not change.
time.sleep = lambda seconds: None
if not torch.accelerator.is_available():
    # As vLLM's own CPU runner does.
    torch.accelerator.empty_cache = lambda: None


def load(target: str, folder: str) -> str:
    """Return the error that loading the draft ends with, or nothing."""
    spec = {"method": "eagle3", "model": folder, "num_speculative_tokens": 3}
    arguments = EngineArgs(
        model=target, speculative_config=spec, max_model_len=128, enforce_eager=True, dtype="bfloat16"
    )
    try:
        config = arguments.create_engine_config()
        with set_current_vllm_config(config):
            get_model(vllm_config=config, model_config=config.speculative_config.draft_model_config)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"[:400]
    return ""


def load_all(target: str, folders: list[str]) -> None:
    """Answer for every folder."""
    with tempfile.TemporaryDirectory() as rendezvous:
        config = EngineArgs(model=target, max_model_len=128, enforce_eager=True).create_engine_config()
        with set_current_vllm_config(config):
            init_distributed_environment(1, 0, f"file://{rendezvous}/store", 0, "gloo")
            initialize_model_parallel(1)
        for folder in folders:
            error = load(target, folder)
            answer({"folder": folder, "outcome": "refuses" if error else "loads", "error": error})


def look_up_all(names: list[str]) -> None:
    """Answer for every class name; the last answer also lists the whole registry."""
    for name in names:
        known = ModelRegistry.models.get(name)
        eagle3 = known is not None and supports_eagle3(known.load_model_cls())
        whole = " ".join(sorted(ModelRegistry.models)) if name == names[-1] else ""
        answer(
            {"name": name, "registered": "yes" if known else "no", "eagle3": "yes" if eagle3 else "no", "all": whole}
        )


def answer(fields: dict[str, str]) -> None:
    """Print one answer."""
    print("ANSWER " + json.dumps(fields), flush=True)  # noqa: T201


def main() -> None:
    """Answer for every line on standard input."""
    mode, target = sys.argv[1:]
    lines = sys.stdin.read().split()
    if mode == "load":
        load_all(target, lines)
    else:
        look_up_all(lines)


if __name__ == "__main__":
    main()
