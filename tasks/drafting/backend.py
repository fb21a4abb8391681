"""speculators' hidden-states backend that reads rows out of packed shards, so that the bulk exists once.

Importing this module registers it as `--hidden-states-backend draftworks-packed` with the option
`--packed-states FOLDER`; that must happen before speculators builds its command line. Runs in the training
process and in its data-loading workers.
"""
# ruff: noqa: TID253  (imported by the training child process only)

import argparse
from bisect import bisect_right
from pathlib import Path
from typing import Any

import torch
from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer
from safetensors import safe_open

from tasks.drafting.packed import read_index
from tasks.errors import EvidenceError

BACKEND_NAME = "draftworks-packed"
# Shards kept open per worker: rows come in random order, and an open shard costs a mapping, not memory.
MAX_OPEN_SHARDS = 16


class PackedTransfer(HiddenStatesTransfer):  # type: ignore[misc]
    """Reads the hidden states of a row by its number."""

    def __init__(self, folder: Path) -> None:
        """Read the index; shards are opened when their first row is wanted."""
        self._shards = read_index(folder)
        self._first_rows = [shard.first_row for shard in self._shards]
        self._open: dict[int, tuple[Any, list[int]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave open files behind when a data-loading worker gets its copy."""
        return {**self.__dict__, "_open": {}}

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor]:
        """Return hidden_states [T, L, D] and token_ids [T] of a row. Raises EvidenceError: no such row."""
        position = bisect_right(self._first_rows, file_idx) - 1
        if position < 0 or file_idx >= self._shards[position].end_row:
            raise EvidenceError(
                f"the corpus has a row {file_idx}, the hidden states end at row {self._shards[-1].end_row - 1}"
            )
        file, offsets = self._opened(position)
        row = file_idx - self._shards[position].first_row
        begin, end = offsets[row], offsets[row + 1]
        return {name: file.get_slice(name)[begin:end] for name in ("hidden_states", "token_ids")}

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Refuse: states are extracted before the training, never during it."""
        raise EvidenceError("training asked a server for hidden states; packed states must cover every row")

    def _opened(self, position: int) -> tuple[Any, list[int]]:
        if position not in self._open:
            if len(self._open) >= MAX_OPEN_SHARDS:
                self._open.pop(next(iter(self._open)))
            file: Any = safe_open(self._shards[position].file, framework="pt")
            self._open[position] = (file, file.get_tensor("offsets").tolist())
        return self._open[position]


@HiddenStatesBackend.register(BACKEND_NAME)
class PackedBackend(HiddenStatesBackend):  # type: ignore[misc]
    """What speculators asks a backend for; there is no vLLM side, because states are read from files."""

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """Add the one option of this backend."""
        parser.add_argument("--packed-states", type=str, default="", help="Folder of packed hidden states.")

    @staticmethod
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        """Add nothing: no server is started for this backend."""

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> PackedTransfer:
        """Return the reader for the folder named on the command line."""
        return PackedTransfer(Path(args.packed_states))

    @staticmethod
    def build_kv_transfer_config(args: argparse.Namespace) -> dict[str, Any]:
        """Refuse: no server is started for this backend."""
        raise EvidenceError(f"{BACKEND_NAME} reads files; it has no connector for a vLLM server")
