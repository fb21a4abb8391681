"""The training child process: speculators' train command with Draftworks' additions.

    PYTHON -m tasks.drafting.trainer --metrics-file RUN/metrics.jsonl [--on-cpu] <options of speculators train>

Additions: packed hidden states, CPU, metrics as JSON lines, validation metrics kept for every epoch, a stop before
a non-finite gradient reaches the weights, resumption from the newest complete epoch, and a stop on TERM.
Exit status: 0 done, 2 wrong options or unusable input, 3 not finite, 143 stopped by TERM (earlier epochs are intact).
"""
# ruff: noqa: TID253  (runs in the training child process only)

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from speculators.train import cli
from speculators.train.trainer import Trainer

from tasks.drafting import backend  # noqa: F401  (registers the backend before the options are built)
from tasks.drafting.cpu import CPU, has_accelerator, use_cpu
from tasks.drafting.epochs import STATE_NAME, VALIDATION_NAME, remove_incomplete
from tasks.drafting.metrics import MetricLines
from tasks.errors import DraftworksError, EvidenceError

EXIT_UNUSABLE = 2
EXIT_NOT_FINITE = 3
EXIT_TERMINATED = 128 + 15
# The name that speculators gives to what it saves when a signal arrives.
INTERRUPTED = "interrupted"


class NotFinite(EvidenceError):
    """The loss or its gradient became NaN or infinite."""


class DraftTrainer(Trainer):  # type: ignore[misc]
    """speculators' trainer with Draftworks' additions."""

    def __init__(self, *args: Any, options: argparse.Namespace) -> None:
        """Set up as speculators does; logging is configured by then, so the metrics can be attached."""
        self._options = options
        super().__init__(*args)
        if self.rank == 0:
            logging.getLogger("speculators.metrics").addHandler(MetricLines(options.metrics_file))

    def setup_trainer(self) -> None:
        """Choose the device before the model is moved to it."""
        super().setup_trainer()
        if self._options.on_cpu:
            self.local_rank = CPU
            self.device_type = CPU.type

    def run_training(self) -> None:
        """Validate a last epoch that a kill left unmeasured, then train."""
        last = self.checkpointer.previous_epoch
        unmeasured = last >= 0 and not (self.checkpointer.path / str(last) / VALIDATION_NAME).is_file()
        if unmeasured and self._resume_local_step == 0:
            self.maybe_update_best(last, self.val_epoch(last))
        super().run_training()

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """Save an epoch; on TERM save nothing, because a resumed training starts from whole epochs."""
        if epoch == INTERRUPTED:
            raise SystemExit(EXIT_TERMINATED)
        # An epoch that is saved again counts as incomplete until its last file is written.
        (self.checkpointer.path / str(epoch) / STATE_NAME).unlink(missing_ok=True)
        super().maybe_save_checkpoint(epoch, local_step=local_step)

    def maybe_update_best(self, epoch: int, val_metrics: dict[str, float] | None) -> None:
        """Keep the validation metrics of every epoch; speculators keeps those of a new best only."""
        if val_metrics is not None:
            self.checkpointer.save_val_metrics(epoch, val_metrics)
        super().maybe_update_best(epoch, val_metrics)

    def _optimizers_step(self) -> None:
        # Gradients are clipped by now: one value that is not finite has made their sum not finite.
        gradients = [p.grad.sum() for p in self.model.parameters() if p.grad is not None]
        if not torch.isfinite(torch.stack(gradients).sum()).item():
            raise NotFinite(
                f"training stopped at step {self.global_step}: the loss or its gradient is NaN or infinite. "
                "The weights before this step are kept. Lower training.learning_rate, and check the hidden states."
            )
        super()._optimizers_step()


def _own_options(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--metrics-file", type=Path, required=True)
    parser.add_argument("--on-cpu", action="store_true")
    return parser.parse_known_args(argv)


def main(argv: list[str]) -> int:
    """Train and return the exit status."""
    from speculators.train.config import TrainConfig

    options, rest = _own_options(argv)
    config = TrainConfig.resolve(rest)
    try:
        if options.on_cpu:
            use_cpu()
        elif not has_accelerator():
            raise EvidenceError("this machine has no accelerator that torch can use; train with device = cpu")
        if os.environ.get("RANK", "0") == "0":
            remove_incomplete(Path(config.trainer.save_path))
        cli.Trainer = partial(DraftTrainer, options=options)
        cli.main(config)
    except DraftworksError as error:
        sys.stderr.write(f"ERROR: {error}\n")
        return EXIT_NOT_FINITE if isinstance(error, NotFinite) else EXIT_UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
