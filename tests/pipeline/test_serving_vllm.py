"""Guards serving against the real vLLM: extraction, chat, refused starts, an engine that dies, a killed owner."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tasks.errors import ServerDied, ServerError, ServerNotReady, TransientError
from tasks.process.sweep import sweep_leftovers
from tasks.recipe.settings import load_settings
from tasks.serving.client import Sampling, TargetClient
from tasks.serving.command import Baseline, Extract, Mode, Place, ServedModel, VllmArgs, server_command
from tasks.serving.counters import scrape
from tasks.serving.endpoint import Endpoint
from tasks.serving.engine import engine_build
from tasks.serving.handover import discard, wait_complete
from tasks.serving.server import managed_server

SETTINGS = load_settings()
TARGET = SETTINGS.targets_dir / "smollm2-135m-instruct"  # made by ./infra/test; without it these tests fail
LAYERS, HIDDEN = (2, 15, 27, 30), 576
ROWS = ([1, 2, 3, 4, 5], [100] * 40, list(range(200, 300)))
SMALL: VllmArgs = {"enforce_eager": True, "max_model_len": 512}
START_S = 600.0

pytestmark = pytest.mark.vllm


@contextmanager
def serve(folder: Path, mode: Mode, vllm: VllmArgs = SMALL, start_deadline_s: float = START_S) -> Iterator[Endpoint]:
    command = server_command(ServedModel(str(TARGET), "target"), mode, Place(SETTINGS.vllm_python), vllm)
    log_path = folder / "server.log"
    with managed_server(command, log_path=log_path, start_deadline_s=start_deadline_s, run_folder=folder) as endpoint:
        yield endpoint


async def extract_rows(endpoint: Endpoint) -> list[dict[str, object]]:
    """Return what each row's file holds, and remove it."""
    import torch
    from safetensors.torch import load_file

    async with TargetClient(endpoint, 3, 120.0) as client:
        paths = await asyncio.gather(*(client.extract(row) for row in ROWS))
    found: list[dict[str, object]] = []
    for path in paths:
        tensors = load_file(wait_complete(path, 30))
        states = tensors["hidden_states"]
        slots_differ = not any(torch.equal(states[:, i], states[:, j]) for i in range(4) for j in range(i))
        facts = {"shape": list(states.shape), "dtype": str(states.dtype), "finite": bool(states.isfinite().all())}
        found.append({**facts, "slots_differ": slots_differ, "ids": tensors["token_ids"].tolist()})
        discard(path)
    return found


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Return the shared-memory files that the processes have mapped: what a careless stop leaves behind."""
    return {
        Path(line.split()[-1])
        for process in processes
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        if " /dev/shm/" in line and not line.endswith("(deleted)")
    }


def own_extraction(folder: Path) -> None:
    """Be the owner that gets killed: serve, extract, report, and stay (run in a process of its own)."""
    storage = folder / "states"
    storage.mkdir()
    with serve(folder, Extract(LAYERS, storage)) as endpoint:
        report = asyncio.run(extract_rows(endpoint))
        (folder / "report.part").write_text(json.dumps([report, sorted(os.listdir(storage))]))
        (folder / "report.part").rename(folder / "report.json")
        time.sleep(START_S)


def test_states_are_extracted_and_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.pipeline import test_serving_vllm as t; "
    argv = [sys.executable, "-c", f"{code} t.own_extraction(Path(sys.argv[1]))", str(tmp_path)]
    owner = subprocess.Popen(argv, cwd=Path(__file__).parents[2])
    try:
        while owner.poll() is None and not (tmp_path / "report.json").exists():
            time.sleep(0.2)
        assert owner.poll() is None, (tmp_path / "server.log").read_text()[-4000:]
        started = psutil.Process(owner.pid).children(recursive=True)
        shared = shared_memory(started)
    finally:
        owner.kill()
        owner.wait()
    assert len(started) >= 3  # lifeline, API server, engine
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert [path for path in shared if path.exists()] == []
    assert list((tmp_path / "running").iterdir()) == []
    assert sweep_leftovers(tmp_path) == []
    rows, left_in_storage = json.loads((tmp_path / "report.json").read_text())
    assert rows == [
        {"shape": [len(row), 4, HIDDEN], "dtype": "torch.bfloat16", "finite": True, "slots_differ": True, "ids": row}
        for row in ROWS
    ]
    assert left_in_storage == []


async def ask(endpoint: Endpoint) -> None:
    messages = [{"role": "user", "content": "Name three fruits."}]
    async with TargetClient(endpoint, 2, 120.0) as client:
        answer = await client.chat(messages, Sampling(24))
        again = await client.complete(answer.prompt_token_ids, Sampling(24))
    assert answer.finish_reason in {"stop", "length"}
    assert answer.text and answer.spec is None
    assert 1 <= len(answer.token_ids) <= 24
    assert again.prompt_token_ids == answer.prompt_token_ids


async def ask_for_ever(endpoint: Endpoint, engine: psutil.Process) -> None:
    async with TargetClient(endpoint, 2, 120.0) as client:
        while True:
            await client.complete([1, 2, 3], Sampling(8))
            if engine.is_running():
                engine.send_signal(signal.SIGKILL)


def test_a_chat_has_token_ids_and_a_killed_engine_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ServerDied, match="while it was needed"), serve(tmp_path, Baseline()) as endpoint:
        assert endpoint.version == engine_build(SETTINGS.vllm_python)["vllm"]
        asyncio.run(ask(endpoint))
        assert scrape(endpoint).num_drafts == 0
        started = psutil.Process().children(recursive=True)
        shared = shared_memory(started)
        engine = next(process for process in started if "EngineCore" in " ".join(process.cmdline()))
        asyncio.run(ask_for_ever(endpoint, engine))
    assert psutil.wait_procs(started, timeout=1)[1] == []
    assert [path for path in shared if path.exists()] == []


def test_a_refused_argument_is_permanent_and_shown(tmp_path: Path) -> None:
    wrong = pytest.raises(ServerError, match=r"(?s)ended while starting with exit status 2.*no-such-argument")
    with wrong as caught, serve(tmp_path, Baseline(), {"no_such_argument": 1}):
        pytest.fail("it is not ready")
    assert not isinstance(caught.value, TransientError)


def test_a_model_that_cannot_be_served_is_permanent_and_shown(tmp_path: Path) -> None:
    config = {"architectures": ["NoSuchForCausalLM"], "model_type": "llama", "vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = ServedModel(str(tmp_path), "target")
    command = server_command(served, Baseline(), Place(SETTINGS.vllm_python), {"skip_tokenizer_init": True})
    with (
        pytest.raises(ServerError, match=r"(?s)ended while starting with exit status 1.*NoSuchForCausalLM") as caught,
        managed_server(command, log_path=tmp_path / "log", start_deadline_s=START_S, run_folder=tmp_path),
    ):
        pytest.fail("it is not ready")
    assert not isinstance(caught.value, TransientError)


def test_too_little_time_to_start_is_said(tmp_path: Path) -> None:
    late = pytest.raises(ServerNotReady, match="did not answer within 2 s and was stopped")
    with late, serve(tmp_path, Baseline(), start_deadline_s=2):
        pytest.fail("it is not ready")
    assert list((tmp_path / "running").iterdir()) == []
