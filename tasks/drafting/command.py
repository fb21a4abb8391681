"""The command line of one training: speculators' options out of a recipe. Pure: nothing is started here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.drafting.dataset import training_ratio
from tasks.drafting.vocabulary import D2T_NAME, T2D_NAME
from tasks.errors import RecipeError
from tasks.process.child import Command
from tasks.recipe.sections import Draft, Training

METRICS_NAME = "metrics.jsonl"
# speculators' names of what other recipe fields, or Draftworks itself, decide.
OWNED_OPTIONS = frozenset(
    {
        "config",
        "data_path",
        "draft_arch",
        "draft_vocab_size",
        "d2t_path",
        "t2d_path",
        "dry_run",
        "dump_config",
        "epochs",
        "from_pretrained",
        "hidden_states_backend",
        "lr",
        "metrics_file",
        "no_resume_from_checkpoint",
        "norm_before_residual",
        "num_layers",
        "on_cpu",
        "on_missing",
        "packed_states",
        "save_best",
        "save_path",
        "scheduler_warmup_ratio",
        "seed",
        "speculator_type",
        "target_layer_ids",
        "token_freq_path",
        "total_seq_len",
        "train_data_ratio",
        "trust_remote_code",
        "ttt_steps",
        "verifier_name_or_path",
    }
)


@dataclass(frozen=True)
class TrainingInputs:
    """What a training reads."""

    target: Path
    data: Path
    states: Path
    layer_ids: tuple[int, ...]
    vocabulary: Path | None = None
    """Folder of the vocabulary map; None for the target's whole vocabulary."""
    draft_size: int | None = None


@dataclass(frozen=True)
class Placement:
    """Where a training runs."""

    python: Path
    cwd: Path
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_ids: str | None = None
    trust_remote_code: bool = False


def train_command(inputs: TrainingInputs, draft: Draft, training: Training, placement: Placement, run: Path) -> Command:
    """Return the command that trains into the folder run and resumes what it finds there.

    Raises RecipeError: extra_args with an option that another field decides, or several processes on a CPU.
    """
    options = _input_options(inputs, run) + _shape_options(inputs, draft) + _schedule_options(training)
    if placement.trust_remote_code:
        options.append("--trust-remote-code")
    argv = (*_launcher(training, placement), *options, *_device_options(placement), *extra_options(training))
    return Command(argv=argv, env=_environment(placement), cwd=placement.cwd)


def _launcher(training: Training, placement: Placement) -> tuple[str, ...]:
    python, module = str(placement.python), "tasks.drafting.trainer"
    if training.num_processes == 1:
        return (python, "-m", module)
    if placement.device == "cpu":
        raise RecipeError(f"training.num_processes is {training.num_processes}; on a CPU it must be 1")
    nodes = ("--standalone", "--nproc-per-node", str(training.num_processes))
    return (python, "-m", "torch.distributed.run", *nodes, "-m", module)


def _input_options(inputs: TrainingInputs, run: Path) -> list[str]:
    options = ["--metrics-file", str(run / METRICS_NAME), "--verifier-name-or-path", str(inputs.target)]
    options += ["--data-path", str(inputs.data), "--save-path", str(run), "--on-missing", "raise"]
    options += ["--hidden-states-backend", "draftworks-packed", "--packed-states", str(inputs.states)]
    if inputs.vocabulary is not None:
        options += ["--d2t-path", str(inputs.vocabulary / D2T_NAME), "--t2d-path", str(inputs.vocabulary / T2D_NAME)]
        options += ["--draft-vocab-size", str(inputs.draft_size)]
    return options


def _shape_options(inputs: TrainingInputs, draft: Draft) -> list[str]:
    layers = [str(layer) for layer in range(draft.num_layers)]
    # Full attention in every layer: the same in training and serving at any context length.
    options = ["--speculator-type", draft.algorithm, "--draft-arch", draft.decoder, "--num-layers", str(len(layers))]
    options += ["--full-attention-indices", *layers]
    options += ["--target-layer-ids", *map(str, inputs.layer_ids)]
    options.append("--norm-before-residual" if draft.norm_before_residual else "--no-norm-before-residual")
    # EAGLE-3 has no mask token; naming one keeps speculators from loading a tokenizer to look for it.
    return [*options, "--mask-token-id", "0"]


def _schedule_options(training: Training) -> list[str]:
    options = ["--epochs", str(training.epochs), "--lr", repr(training.learning_rate)]
    options += ["--ttt-steps", str(training.ttt_steps), "--total-seq-len", str(training.sequence_tokens)]
    options += ["--train-data-ratio", repr(training_ratio(training.validation_fraction))]
    options += ["--scheduler-warmup-ratio", repr(training.warmup_fraction), "--seed", str(training.seed)]
    return options


def _device_options(placement: Placement) -> tuple[str, ...]:
    if placement.device == "cuda":
        return ("--num-workers", "4")
    return ("--on-cpu", "--draft-attn-impl", "sdpa", "--loss-implementation", "eager", "--num-workers", "0")


def _environment(placement: Placement) -> dict[str, str]:
    env = {"TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    if placement.device == "cpu":
        # Threads that spin at a barrier starve each other as soon as anything else runs: measured 84 tokens/s
        # spinning against 606 sleeping, 2 threads on 2 busy cores.
        env["OMP_WAIT_POLICY"] = "PASSIVE"
    if placement.gpu_ids is not None:
        env["CUDA_VISIBLE_DEVICES"] = placement.gpu_ids
    return env


def extra_options(training: Training) -> list[str]:
    """Return training.extra_args as options: true is a switch, false its --no- form.

    Raises RecipeError that names options which other fields decide.
    """
    named = {name.lstrip("-").replace("-", "_"): value for name, value in training.extra_args.items()}
    owned = sorted(named.keys() & OWNED_OPTIONS)
    if owned:
        raise RecipeError(f"training.extra_args sets {', '.join(owned)}, which Draftworks sets itself; remove it")
    options: list[str] = []
    for name, value in named.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            options += [f"--{flag}", *str(value).split()]
    return options
