"""What speculators 0.9 needs so that its trainer runs without an accelerator.

It addresses its device as an ordinal and synchronises the accelerator around every phase. On a CPU both need a
substitute; the model code itself is plain torch. Runs in the training child process only.
"""
# ruff: noqa: TID253  (imported by the training child process only)

import torch
from speculators.train import checkpointer

CPU = torch.device("cpu")


def use_cpu() -> None:
    """Make checkpoints load on the CPU and synchronisation do nothing, for the rest of this process."""
    checkpointer.get_current_device = lambda: CPU.type
    torch.accelerator.synchronize = lambda *_: None


def has_accelerator() -> bool:
    """Return whether torch sees a usable accelerator."""
    return bool(torch.accelerator.is_available())
