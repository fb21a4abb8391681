"""Hidden states out of a vLLM server: vLLM's example connector, made to work on a CPU too. Runs inside vLLM.

vLLM imports this file as the top-level module `connector` (tasks/serving/command.py puts its folder on PYTHONPATH), so
it imports nothing of ours. For each finished request the server writes STORAGE/<request id>.safetensors:

    hidden_states  [T, L, D] served dtype: token, captured layer (the final state last), hidden size
    token_ids      [T] int64

and holds an exclusive flock on <file>.lock until the file is complete (tasks/serving/handover.py waits for it).
Made for vLLM 0.32.
"""
# ruff: noqa: TID253  this file only ever runs inside vLLM's own process

import fcntl
import os
from functools import partial

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class DoneEvent:
    """A copy on the CPU is complete when it returns; this stands where the parent expects a CUDA event."""

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Return that the copy is complete."""
        return True


class HiddenStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]  # vllm is untyped here
    """Writes hidden states on CUDA as its parent does, and on a CPU without pinned memory, streams and events."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        if self._kv_cache is not None and self._kv_cache.device.type != "cpu":
            super()._submit_async_write(pending)
        elif self._is_tp_rank_zero:
            self._submit_plain_write(pending)

    def _submit_plain_write(self, pending: PendingSave) -> None:
        """Copy the request's states now, before its cache blocks are reused, and write them in a thread."""
        tensors = {
            "hidden_states": extract_from_kv_cache(
                self._kv_cache, self._slots(pending.block_ids), pending.token_ids.shape[0]
            ).contiguous(),
            "token_ids": pending.token_ids.clone(),
        }
        done = DoneEvent()
        lock_fd = self._lock_fds.pop(pending.req_id, None)
        if lock_fd is None and self.use_lock:
            lock_fd = os.open(f"{pending.filename}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
        future = self._executor.submit(self._write_tensors, tensors, done, pending.filename, lock_fd)
        self._req_copy_events[pending.req_id] = done
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _slots(self, block_ids: list[int]) -> torch.Tensor:
        """Return the cache slot of each token of the request, in order, to the end of its last block."""
        first = torch.tensor(block_ids, dtype=torch.long) * self._block_size
        slots: torch.Tensor = first[:, None] + torch.arange(self._block_size)
        return slots.flatten()
