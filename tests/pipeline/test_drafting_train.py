"""Guards the training of a draft as a whole: packed states in, epochs and metrics out, killed and resumed.

The target is a tiny Llama with random weights, and speculators is the real one, in its own process, on the CPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.drafting.command import METRICS_NAME, Placement, TrainingInputs, train_command
from tasks.drafting.dataset import write_training_folder
from tasks.drafting.epochs import choose_epoch, list_epochs
from tasks.drafting.metrics import read_metric_lines
from tasks.drafting.publish import write_draft_folder
from tasks.drafting.vocabulary import choose_vocabulary, count_supervised, save_map
from tasks.process.child import Command
from tasks.recipe.sections import Draft, Training

ROOT = Path(__file__).resolve().parents[2]
VOCAB, HIDDEN, LAYERS, DRAFT_VOCAB = 160, 64, 6, 48
LAYER_IDS = (1, 3, 4)
# For a machine that does other work too; alone, each training takes about 10 s.
LIMIT_S = 300
NUM_ROWS, PROMPT_TOKENS, ANSWER_TOKENS = 24, 8, 16


@dataclass(frozen=True)
class Material:
    """Everything that a training reads."""

    inputs: TrainingInputs
    rows: pa.Table


def _tiny_target(folder: Path) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.save_pretrained(folder)
    return model


def _states_of(model: Any, ids: Any) -> Any:
    """Return [T, L, D]: the residual stream entering each layer, and the one before the final norm."""
    import torch

    final: list[Any] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: final.append(inputs[0]))
    with torch.inference_mode():
        hidden = model(ids[None], output_hidden_states=True).hidden_states
    hook.remove()
    return torch.stack([hidden[layer][0] for layer in LAYER_IDS] + [final[0][0]], dim=1)


def _write_states(folder: Path, model: Any, rows: list[list[int]]) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    shards, half = [], len(rows) // 2
    for number, first in enumerate((0, half)):
        part = [torch.tensor(row) for row in rows[first : first + half]]
        tensors = {
            "hidden_states": torch.cat([_states_of(model, ids) for ids in part]),
            "token_ids": torch.cat(part),
            "offsets": torch.tensor(np.cumsum([0] + [len(ids) for ids in part])),
        }
        save_file(tensors, folder / f"states-{number:05}.safetensors")
        shards.append({"file": f"states-{number:05}.safetensors", "first_row": first, "num_rows": half})
    (folder / "index.json").write_text(json.dumps({"shards": shards}))


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("material")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside torch and transformers, met on import
        model = _tiny_target(folder / "target")
    random = np.random.default_rng(0)
    # Answers repeat one short pattern, so that there is something to learn.
    answer = [5, 9, 11, 7] * (ANSWER_TOKENS // 4)
    rows = [random.integers(20, 60, PROMPT_TOKENS).tolist() + answer for _ in range(NUM_ROWS)]
    mask = [[0] * PROMPT_TOKENS + [1] * ANSWER_TOKENS] * NUM_ROWS
    table = pa.table({"input_ids": rows, "loss_mask": mask})
    _write_states(folder / "states", model, rows)
    write_training_folder(folder / "data", table, folder / "states", 0.2)
    counts = count_supervised(table["input_ids"], table["loss_mask"], VOCAB)
    vocabulary = choose_vocabulary(counts, DRAFT_VOCAB, pinned_ids=(2,))
    assert vocabulary is not None
    save_map(vocabulary, folder / "vocabulary")
    inputs = TrainingInputs(
        folder / "target", folder / "data", folder / "states", LAYER_IDS, folder / "vocabulary", DRAFT_VOCAB
    )
    return Material(inputs, table)


def command_for(material: Material, run: Path, **training: Any) -> Command:
    fields: dict[str, Any] = {"ttt_steps": 3, "sequence_tokens": 64, "validation_fraction": 0.2, **training}
    return train_command(
        material.inputs, Draft(), Training(**fields), Placement(Path(sys.executable), ROOT, "cpu"), run
    )


def start(command: Command, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            command.argv, env={**os.environ, **command.env}, cwd=command.cwd, stdout=output, stderr=output
        )


def wait_for(condition: Any, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)


def test_a_training_killed_in_the_middle_resumes_and_ends_with_a_draft(material: Material, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    run.mkdir()
    command = command_for(material, run, epochs=6, learning_rate=0.003)
    process = start(command, log)
    try:
        wait_for(lambda: any(e.problem is None and e.metrics for e in list_epochs(run)), process, log)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = [epoch.number for epoch in list_epochs(run) if epoch.problem is None]
    assert before and before[-1] < 5
    stamp = (run / "0" / "model.safetensors").stat().st_mtime_ns
    # What a kill in the middle of a save leaves behind must not be resumed from.
    broken = run / str(before[-1] + 1)
    broken.mkdir(exist_ok=True)
    (broken / "training_state.json").unlink(missing_ok=True)
    (broken / "model.safetensors").write_bytes(b"half")

    assert start(command, log).wait(LIMIT_S) == 0, log.read_text()[-3000:]
    epochs = list_epochs(run)
    assert [epoch.number for epoch in epochs] == list(range(6))
    assert [epoch.problem for epoch in epochs] == [None] * 6
    assert all(epoch.predicted_acceptance_length for epoch in epochs)
    assert (run / "0" / "model.safetensors").stat().st_mtime_ns == stamp

    lines = read_metric_lines(run / METRICS_NAME)
    assert sorted({line["epoch"] for line in lines if line["split"] == "val"}) == list(range(6))
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert losses[-1] < losses[0]
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(len(steps)))
    _require_servable(write_draft_folder(choose_epoch(run).folder, tmp_path / "draft", "owner/tiny")[0])


def _require_servable(config_path: Path) -> None:
    from safetensors import safe_open

    config = json.loads(config_path.read_text())
    assert config["draft_vocab_size"] == DRAFT_VOCAB
    assert config["eagle_aux_hidden_state_layer_ids"] == list(LAYER_IDS)
    with safe_open(config_path.with_name("model.safetensors"), framework="np") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    assert shapes["lm_head.weight"] == [DRAFT_VOCAB, HIDDEN]
    assert shapes["fc.weight"] == [HIDDEN, len(LAYER_IDS) * HIDDEN]
    assert (shapes["t2d"], shapes["d2t"]) == ([VOCAB], [DRAFT_VOCAB])


def test_a_terminated_training_says_so_and_leaves_its_epochs_whole(material: Material, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(command_for(material, run, epochs=500), log)
    try:
        wait_for(lambda: (run / "1" / "val_metrics.json").is_file(), process, log)
        process.terminate()
        assert process.wait(LIMIT_S) == 143, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    whole = [epoch.number for epoch in list_epochs(run) if epoch.problem is None]
    assert whole[:2] == [0, 1]
    assert not (run / "interrupted").exists()


def test_a_loss_that_is_not_finite_stops_the_training(material: Material, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    states = tmp_path / "states"
    states.mkdir()
    import torch
    from safetensors.torch import load_file, save_file

    for path in material.inputs.states.iterdir():
        if path.suffix == ".json":
            (states / path.name).write_bytes(path.read_bytes())
            continue
        tensors = load_file(path)
        tensors["hidden_states"][:, 1] = torch.nan
        save_file(tensors, states / path.name)
    inputs = TrainingInputs(**{**vars(material.inputs), "states": states})
    command = command_for(Material(inputs, material.rows), run, epochs=2)
    assert start(command, log).wait(LIMIT_S) == 3
    assert "ERROR: training stopped at step 0: the loss or its gradient is NaN" in log.read_text()
    assert list_epochs(run) == ()
