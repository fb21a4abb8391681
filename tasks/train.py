"""Stage train: speculators' training in a child process; every epoch is stored, the best one becomes the draft.

Leaves config.json and model.safetensors (what vLLM serves), metrics.jsonl, epochs.json and train.log.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from tasks.corpus.rows import ROWS_PATTERN, read_rows
from tasks.drafting.command import METRICS_NAME, Placement, TrainingInputs, train_command
from tasks.drafting.dataset import TrainingData, write_training_folder
from tasks.drafting.epochs import Epoch, choose_epoch, list_epochs
from tasks.drafting.metrics import read_metric_lines
from tasks.drafting.publish import write_draft_folder
from tasks.job import Job, found_or_made
from tasks.process.run import run_to_end
from tasks.progress import Progress, RunLog
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import PROJECT_ROOT, device_of
from tasks.stage import Done, stage
from tasks.store.manifest import FileEntry, PartManifest

# The trainer writes to its log at least once per step and validation.
SILENT_S = 1800.0
# The trainer prints dozens of lines per step; its metrics and epochs are looked at less often.
LOOK_EVERY_S = 5.0
# What a resumed training needs of an epoch; links and code copies stay behind.
EPOCH_FILES = (
    "config.json",
    "model.safetensors",
    "optimizer_state_dict.pt",
    "scheduler_state_dict.pt",
    "training_state.json",
    "val_metrics.json",
)


class EpochKeeper:
    """Stores every epoch as soon as it is complete, so that a crash costs at most one."""

    def __init__(self, job: Job, run: Path) -> None:
        """Restore the epochs that an earlier attempt stored, on this or another machine."""
        self._job = job
        self._run = run
        self._parts = job.parts()
        for name, part in self._parts.items():
            number = name.removeprefix("epoch-")
            if any(epoch.number == int(number) and epoch.problem is None for epoch in list_epochs(run)):
                continue
            job.logger.info("restoring epoch %s from the store", number)
            job.artifacts.fetch_files(job.ref, part.files, run.parent)

    def keep(self, *, last: bool = False) -> None:
        """Store complete epochs that are not stored yet; one without validation metrics only when it is the last."""
        for epoch in list_epochs(self._run):
            name = f"epoch-{epoch.number}"
            measured = epoch.predicted_acceptance_length is not None
            if epoch.problem is None and name not in self._parts and (measured or last):
                self._parts[name] = self._store(epoch, name)

    def _store(self, epoch: Epoch, name: str) -> PartManifest:
        present = [epoch.folder / file for file in EPOCH_FILES if (epoch.folder / file).is_file()]
        files = tuple(
            self._job.artifacts.put(self._job.ref, f"{self._run.name}/{epoch.number}/{path.name}", path)
            for path in present
        )
        facts = {"predicted_acceptance_length": epoch.predicted_acceptance_length}
        part = self._job.put_part(name, files, facts)
        self._job.logger.info(
            "epoch %d stored, predicted acceptance length %.3f", epoch.number, epoch.predicted_acceptance_length or 1.0
        )
        return part

    def drop(self) -> None:
        """Remove the stored epochs with their training state; the draft is finished."""
        ref = self._job.ref
        self._job.artifacts.delete_parts(ref, list(self._parts))
        self._job.artifacts.store.delete(
            [ref.prefix + entry.path for part in self._parts.values() for entry in part.files]
        )


def _fraction(lines: list[dict[str, Any]], epochs: int, steps_per_epoch: float) -> float:
    """Return how much of the training is done; the guess of steps per epoch is replaced once an epoch has ended."""
    epoch, step = int(lines[-1]["epoch"]), int(lines[-1]["step"])
    first = next(int(line["step"]) for line in lines if line["epoch"] == epoch)
    expected = first / epoch if epoch else steps_per_epoch
    within = min((step - first + 1) / max(expected, 1.0), 1.0)
    return min((epoch + within) / epochs, 1.0)


def _train(job: Job, recipe: Recipe, run: Path, data: TrainingData, inputs: TrainingInputs) -> EpochKeeper:
    settings = job.settings
    placement = Placement(
        python=settings.train_python,
        cwd=PROJECT_ROOT,
        device=device_of(settings),
        gpu_ids=settings.gpu_ids,
        trust_remote_code=recipe.target.trust_remote_code,
    )
    command = train_command(inputs, recipe.draft, recipe.training, placement, run)
    keeper = EpochKeeper(job, run)
    progress, log = Progress("train"), RunLog()
    guess = data.num_tokens * (1 - recipe.training.validation_fraction) / recipe.training.sequence_tokens
    looked_at = 0.0

    def on_line(text: str) -> None:
        nonlocal looked_at
        log.line(text)
        if time.monotonic() - looked_at < LOOK_EVERY_S:
            return
        looked_at = time.monotonic()
        lines = [line for line in read_metric_lines(run / METRICS_NAME) if line["split"] == "train"]
        if lines:
            progress.show(_fraction(lines, recipe.training.epochs, guess), f"step {lines[-1]['step']}")
        keeper.keep()

    run_to_end(
        command,
        job.scratch / "train.log",
        deadline_s=60 * recipe.training.deadline_minutes,
        silent_s=SILENT_S,
        on_line=on_line,
    )
    keeper.keep(last=True)
    progress.show(1.0, "done")
    return keeper


def _store_draft(job: Job, plan: Plan, run: Path) -> tuple[list[FileEntry], Epoch]:
    best = choose_epoch(run)
    draft = write_draft_folder(best.folder, job.scratch / "draft", plan.inputs.published_name)
    epochs = [
        {"epoch": epoch.number, "predicted_acceptance_length": epoch.predicted_acceptance_length, **epoch.metrics}
        for epoch in list_epochs(run)
    ]
    files = [job.artifacts.put(job.ref, path.name, path) for path in draft]
    files.append(job.put_json("epochs.json", {"chosen": best.number, "epochs": epochs}))
    files.append(job.artifacts.put(job.ref, METRICS_NAME, run / METRICS_NAME))
    files.append(job.artifacts.put(job.ref, "train.log", job.scratch / "train.log"))
    return files, best


def _make(job: Job) -> Done:
    recipe, plan = job.recipe, job.plan
    states, vocabulary = job.fetch("states"), job.fetch("vocabulary")
    run = job.scratch / "epochs"
    run.mkdir(exist_ok=True)
    shutil.rmtree(job.scratch / "data", ignore_errors=True)
    rows = read_rows(job.fetch_listed("corpus", ROWS_PATTERN))
    data = write_training_folder(job.scratch / "data", rows, states, recipe.training.validation_fraction)
    has_map = (vocabulary / "d2t.npy").is_file()
    inputs = TrainingInputs(
        target=job.target().folder,
        data=job.scratch / "data",
        states=states,
        layer_ids=plan.inputs.layer_ids,
        vocabulary=vocabulary if has_map else None,
        draft_size=recipe.vocabulary.draft_size if has_map else None,
    )
    keeper = _train(job, recipe, run, data, inputs)
    files, best = _store_draft(job, plan, run)
    facts = {
        "epoch": best.number,
        "epochs": recipe.training.epochs,
        "predicted_acceptance_length": best.predicted_acceptance_length,
        "rows": data.num_rows,
        "validation_rows": data.num_validation_rows,
        "layer_ids": list(plan.inputs.layer_ids),
    }
    tokens = data.num_tokens * recipe.training.epochs
    done = job.finish(files, facts, tokens=tokens, on_gpu=device_of(job.settings) == "cuda")
    keeper.drop()
    shutil.rmtree(run)
    return done


@stage("train")
def train(recipe: Recipe, plan: Plan) -> Done:
    """Train the draft of this plan, or find it in the store; continues after the last stored epoch."""
    return found_or_made("draft", recipe, plan, _make)
