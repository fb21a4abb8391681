"""Guards the training command line as a whole, and that speculators' own parser accepts it."""

from pathlib import Path

import pytest

from tasks.drafting.command import Placement, TrainingInputs, extra_options, train_command
from tasks.errors import RecipeError
from tasks.recipe.sections import Draft, Training

INPUTS = TrainingInputs(Path("/t"), Path("/d"), Path("/s"), (2, 3, 4), vocabulary=Path("/v"), draft_size=32)
PYTHON = Path("/py")


def test_the_whole_command_on_a_cpu() -> None:
    command = train_command(
        INPUTS, Draft(), Training(epochs=2, learning_rate=0.002), Placement(PYTHON, Path("/w")), Path("/run")
    )
    expected = """/py -m tasks.drafting.trainer --metrics-file /run/metrics.jsonl --verifier-name-or-path /t
    --data-path /d --save-path /run --on-missing raise --hidden-states-backend draftworks-packed --packed-states /s
    --d2t-path /v/d2t.npy --t2d-path /v/t2d.npy --draft-vocab-size 32
    --speculator-type eagle3 --draft-arch llama --num-layers 1 --full-attention-indices 0 --target-layer-ids 2 3 4
    --norm-before-residual --mask-token-id 0
    --epochs 2 --lr 0.002 --ttt-steps 3 --total-seq-len 2048 --train-data-ratio 0.9 --scheduler-warmup-ratio 0.05
    --seed 0 --on-cpu --draft-attn-impl sdpa --loss-implementation eager --num-workers 0"""
    assert list(command.argv) == expected.split()
    assert command.cwd == Path("/w")
    assert command.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "CUDA_VISIBLE_DEVICES" not in command.env


def test_several_gpus_go_through_torchrun_and_a_whole_vocabulary_has_no_map() -> None:
    inputs = TrainingInputs(Path("/t"), Path("/d"), Path("/s"), (2, 3, 4))
    placement = Placement(PYTHON, Path("/w"), device="cuda", gpu_ids="0,1", trust_remote_code=True)
    training = Training(num_processes=2, extra_args={"fsdp_shard": True})
    command = train_command(inputs, Draft(norm_before_residual=False), training, placement, Path("/run"))
    assert command.argv[:8] == (
        *("/py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "tasks.drafting.trainer"),
    )
    assert {"--fsdp-shard", "--trust-remote-code", "--no-norm-before-residual"} <= set(command.argv)
    assert not {"--on-cpu", "--draft-attn-impl", "--d2t-path", "--draft-vocab-size"} & set(command.argv)
    assert command.env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_several_processes_need_gpus() -> None:
    with pytest.raises(RecipeError, match="num_processes is 2"):
        train_command(INPUTS, Draft(), Training(num_processes=2), Placement(PYTHON, Path("/w")), Path("/run"))


def test_extra_arguments_become_options() -> None:
    extra = {"optimizer": "adamw", "norm-output": False, "fsdp_shard": True, "log_freq": 5}
    assert extra_options(Training(extra_args=extra)) == [
        *("--optimizer", "adamw", "--no-norm-output", "--fsdp-shard", "--log-freq", "5"),
    ]


@pytest.mark.parametrize("name", ["save-best", "lr", "--data_path", "packed_states"])
def test_options_that_other_fields_decide_are_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="extra_args sets"):
        extra_options(Training(extra_args={name: "1"}))
