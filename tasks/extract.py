"""Stage extract: the target's hidden states for every corpus row, checked by content, in packed shards.

Leaves states-00000.safetensors, ..., index.json (tasks/states/packing.py) and the vLLM server's log.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from tasks.corpus.rows import ROWS_PATTERN, read_rows
from tasks.errors import EvidenceError, RecipeError
from tasks.job import Job, found_or_made
from tasks.progress import Progress
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import device_of
from tasks.serving.client import TargetClient
from tasks.serving.command import Extract
from tasks.serving.handover import discard, wait_complete
from tasks.serving.launch import launch
from tasks.stage import Done, stage
from tasks.states.content import ExpectedStates, check_states
from tasks.states.packing import INDEX_NAME, Shard, estimate_bytes, plan_shards, write_shard
from tasks.states.tensors import RawTensor, read_tensors
from tasks.store.manifest import Account

SERVER_LOG = "vllm.log"
ROW_TIMEOUT_S = 300.0
WRITE_TIMEOUT_S = 60.0
# The final state is captured besides the layers that feed the draft.
FINAL_SLOTS = 1


class Extraction:
    """Extracts shard by shard; a shard is stored before the next begins."""

    def __init__(self, job: Job, rows: Sequence[Sequence[int]], progress: Progress) -> None:
        """Plan the shards and find those that an earlier attempt stored."""
        self._job = job
        self._rows = rows
        self._progress = progress
        target = job.target()
        self.expected = ExpectedStates(len(job.plan.inputs.layer_ids) + FINAL_SLOTS, target.hidden_size)
        bytes_per_token = estimate_bytes(1, self.expected.num_slots, target.hidden_size)
        self.num_tokens = sum(len(row) for row in rows)
        self.num_bytes = self.num_tokens * bytes_per_token
        lengths = [len(row) for row in rows]
        self.shards = plan_shards(lengths, bytes_per_token, job.recipe.extraction.shard_mib * 2**20)
        self.parts = job.parts()
        self._extracted = 0

    @property
    def is_complete(self) -> bool:
        """Tell whether every shard is stored."""
        return all(shard.file in self.parts for shard in self.shards)

    async def run(self, client: TargetClient) -> None:
        """Extract every shard that is not stored yet."""
        async with client:
            for shard in self.shards:
                if shard.file in self.parts:
                    self._extracted += shard.num_rows
                    continue
                states = await asyncio.gather(*(self._row(client, number) for number in shard.rows))
                self._store(shard, states)

    async def _row(self, client: TargetClient, number: int) -> RawTensor:
        """Return the checked states of one row, and remove the server's file."""
        ids = self._rows[number]
        path = await client.extract(ids)
        try:
            await asyncio.to_thread(wait_complete, path, WRITE_TIMEOUT_S)
            states = check_states(read_tensors(path), ids, self.expected)
        except EvidenceError as error:
            raise EvidenceError(f"corpus row {number}: {error}") from error
        finally:
            discard(path)
        self._extracted += 1
        self._progress.show(self._extracted / len(self._rows), f"{self._extracted} of {len(self._rows)} rows")
        return states

    def _store(self, shard: Shard, states: Sequence[RawTensor]) -> None:
        path = self._job.files / shard.file
        write_shard(path, [(self._rows[number], state) for number, state in zip(shard.rows, states, strict=True)])
        entry = self._job.artifacts.put(self._job.ref, shard.file, path)
        facts = {"rows": shard.num_rows, "dtype": states[0].dtype}
        self.parts[shard.file] = self._job.put_part(shard.file, (entry,), facts)

    def index(self) -> dict[str, Any]:
        """Return the index of the packed shards."""
        shards = [{"file": s.file, "first_row": s.first_row, "num_rows": s.num_rows} for s in self.shards]
        return {
            "layer_ids": list(captured_layers(self._job)),
            "dtype": self.parts[self.shards[0].file].facts["dtype"],
            "hidden_size": self.expected.hidden_size,
            "shards": shards,
        }


def captured_layers(job: Job) -> tuple[int, ...]:
    """Return the layer ids in file order: those that feed the draft, then the final state (before the last norm)."""
    return (*job.plan.inputs.layer_ids, job.target().num_layers)


def _check_budget(extraction: Extraction, store_gib: float) -> None:
    """Refuse once more, now that the tokens are counted; prepare had to estimate them."""
    if extraction.num_bytes > store_gib * 2**30:
        raise RecipeError(
            f"the hidden states of {extraction.num_tokens} tokens need {extraction.num_bytes / 2**30:.1f} GiB, "
            f"more than budget.store_gib = {store_gib:g}. Use fewer prompts (prompts.limit), or raise the budget."
        )


def _extract(job: Job, extraction: Extraction, progress: Progress) -> None:
    folder = job.scratch / "handover"
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    mode = Extract(captured_layers(job), folder)
    with launch(job.recipe, job.settings, job.target(), mode, job.scratch / SERVER_LOG, on_wait=progress.waiting) as at:
        asyncio.run(extraction.run(TargetClient(at, job.recipe.extraction.concurrency, ROW_TIMEOUT_S)))


def _make(job: Job) -> Done:
    recipe = job.recipe
    rows = read_rows(job.fetch_listed("corpus", ROWS_PATTERN)).column("input_ids").to_pylist()
    progress = Progress("extract")
    extraction = Extraction(job, rows, progress)
    _check_budget(extraction, recipe.budget.store_gib)
    if not extraction.is_complete:
        _extract(job, extraction, progress)
    progress.show(1.0, "done")
    index = extraction.index()
    files = [extraction.parts[shard.file].files[0] for shard in extraction.shards]
    files += [job.put_json(INDEX_NAME, index), *job.stored_log(SERVER_LOG)]
    facts = {
        "rows": len(rows),
        "tokens": extraction.num_tokens,
        "shards": len(extraction.shards),
        "layer_ids": index["layer_ids"],
        "dtype": index["dtype"],
    }
    account = Account(num_input=len(rows), num_kept=len(rows))
    on_gpu = device_of(job.settings) == "cuda"
    done = job.finish(files, facts, account=account, tokens=extraction.num_tokens, on_gpu=on_gpu)
    job.artifacts.delete_parts(job.ref, list(extraction.parts))
    return done


@stage("extract")
def extract(recipe: Recipe, plan: Plan) -> Done:
    """Extract the hidden states of this plan's corpus, or find them; not needed any more once the draft is made."""
    return found_or_made("states", recipe, plan, _make)
