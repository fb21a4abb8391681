"""Stage generate: the target answers the prompts; its own token ids become the corpus.

Leaves rows-00000.parquet, ... (tasks/corpus/rows.py) and the vLLM server's log, if one was started.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from tasks.corpus.conversation import Conversation
from tasks.corpus.prompts import PromptSet, read_prompt_set
from tasks.corpus.rows import Row, RowRejected, to_row, write_rows
from tasks.errors import EvidenceError, RequestRejected
from tasks.job import Job, found_or_made
from tasks.progress import Progress
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import device_of
from tasks.serving.client import Sampling, TargetClient
from tasks.serving.command import Baseline
from tasks.serving.endpoint import Endpoint, attach
from tasks.serving.launch import launch
from tasks.stage import Done, stage
from tasks.store.manifest import Account, FileEntry

SERVER_LOG = "vllm.log"
ANSWER_TIMEOUT_S = 600.0


@contextmanager
def _endpoints(job: Job, progress: Progress) -> Iterator[list[Endpoint]]:
    """Yield the servers to ask: those of the recipe, or one of ours for as long as the stage needs it."""
    if job.recipe.generation.endpoints:
        key = job.settings.target_api_key
        secret = key.get_secret_value() if key else None
        yield [attach(url, api_key=secret) for url in job.recipe.generation.endpoints]
        return
    log = job.scratch / SERVER_LOG
    with launch(job.recipe, job.settings, job.target(), Baseline(), log, on_wait=progress.waiting) as endpoint:
        yield [endpoint]


class Answering:
    """Asks the target shard by shard; a shard is stored before the next begins."""

    def __init__(self, job: Job, prompts: PromptSet, progress: Progress) -> None:
        """Find the shards that an earlier attempt stored."""
        self._job = job
        self._prompts = prompts.conversations
        self._progress = progress
        self._parts = job.parts()
        size = job.recipe.generation.shard_rows
        self._shards = [self._prompts[first : first + size] for first in range(0, len(self._prompts), size)]
        self._answered = 0

    @property
    def is_complete(self) -> bool:
        """Tell whether every shard is stored."""
        return all(self._name(number) in self._parts for number in range(len(self._shards)))

    @property
    def files(self) -> list[FileEntry]:
        """Return the stored shards in order; a shard in which nothing could be kept has no file."""
        return [entry for number in range(len(self._shards)) for entry in self._parts[self._name(number)].files]

    @property
    def reasons(self) -> Counter[str]:
        """Return why answers were not kept, over all shards."""
        total: Counter[str] = Counter()
        for part in self._parts.values():
            total.update(part.facts["reasons"])
        return total

    def total(self, fact: str) -> int:
        """Return the sum of a fact over all shards."""
        return sum(int(part.facts[fact]) for part in self._parts.values())

    def drop_parts(self) -> None:
        """Forget the part manifests once the artifact has its own."""
        self._job.artifacts.delete_parts(self._job.ref, list(self._parts))

    async def run(self, endpoints: Sequence[Endpoint]) -> None:
        """Answer every shard that is not stored yet, spread over the endpoints."""
        share = max(1, self._job.recipe.generation.concurrency // len(endpoints))
        async with AsyncExitStack() as open_clients:
            clients = [
                await open_clients.enter_async_context(TargetClient(endpoint, share, ANSWER_TIMEOUT_S))
                for endpoint in endpoints
            ]
            for number, shard in enumerate(self._shards):
                if self._name(number) in self._parts:
                    self._answered += len(shard)
                    continue
                answers = await asyncio.gather(
                    *(self._ask(clients[index % len(clients)], item) for index, item in enumerate(shard))
                )
                self._store(number, answers)

    @staticmethod
    def _name(number: int) -> str:
        return f"rows-{number:05d}"

    async def _ask(self, client: TargetClient, prompt: Conversation) -> Row | str:
        """Return the row, or the reason why there is none."""
        asked = self._job.recipe.generation
        sampling = Sampling(asked.max_tokens, asked.temperature, asked.top_p, asked.seed)
        try:
            answer = await client.chat(prompt.messages, sampling, prompt.tools)
            row = to_row(prompt.id, answer.prompt_token_ids, answer.token_ids, answer.text, answer.finish_reason)
        except RequestRejected as error:
            self._job.logger.warning("prompt %s: %s", prompt.id, error)
            return "the server refused the prompt"
        except EvidenceError as error:
            self._job.logger.warning("prompt %s: %s", prompt.id, error)
            return "the answer cannot be stored"
        except RowRejected as reason:
            return str(reason)
        self._answered += 1
        self._progress.show(self._answered / len(self._prompts), f"{self._answered} of {len(self._prompts)} answers")
        return row

    def _store(self, number: int, answers: Sequence[Row | str]) -> None:
        rows = [answer for answer in answers if isinstance(answer, Row)]
        files: tuple[FileEntry, ...] = ()
        if rows:
            path = self._job.files / f"{self._name(number)}.parquet"
            write_rows(rows, path)
            files = (self._job.artifacts.put(self._job.ref, path.name, path),)
        facts = {
            "rows": len(rows),
            "tokens": sum(len(row.input_ids) for row in rows),
            "answer_tokens": sum(len(row.input_ids) - row.num_prompt_tokens for row in rows),
            "cut_at_limit": sum(row.finish_reason == "length" for row in rows),
            "reasons": dict(Counter(answer for answer in answers if isinstance(answer, str))),
        }
        name = self._name(number)
        self._parts[name] = self._job.put_part(name, files, facts)


def _account(prompts: PromptSet, answering: Answering, most_failed: float) -> Account:
    failed = sum(answering.reasons.values())
    asked = len(prompts.conversations)
    reasons = dict(answering.reasons + Counter(prompts.skipped))
    if failed > most_failed * asked:
        raise EvidenceError(
            f"{failed} of {asked} prompts gave no usable answer, more than generation.max_failed_fraction "
            f"{most_failed:g} allows ({reasons}). The run's log names each; mend the prompts or raise the limit."
        )
    skipped = sum(prompts.skipped.values())
    return Account(
        num_input=prompts.num_records,
        num_kept=asked - failed,
        num_failed=failed,
        num_skipped=skipped,
        reasons=reasons,
    )


def _read_prompts(job: Job) -> PromptSet:
    prompts = read_prompt_set(job.recipe.prompts, job.settings)
    if prompts.sha256 != job.plan.inputs.prompts_sha256:
        raise EvidenceError(
            f"the prompts at {job.recipe.prompts.source} changed after the run was planned; start it again"
        )
    return prompts


def _make(job: Job) -> Done:
    recipe = job.recipe
    prompts = _read_prompts(job)
    progress = Progress("generate")
    answering = Answering(job, prompts, progress)
    if not answering.is_complete:
        with _endpoints(job, progress) as endpoints:
            asyncio.run(answering.run(endpoints))
    account = _account(prompts, answering, recipe.generation.max_failed_fraction)
    progress.show(1.0, "done")
    facts = {fact: answering.total(fact) for fact in ("rows", "tokens", "answer_tokens", "cut_at_limit")}
    tokens = facts["answer_tokens"]
    done = job.finish(
        [*answering.files, *job.stored_log(SERVER_LOG)],
        facts,
        account=account,
        tokens=tokens,
        on_gpu=device_of(job.settings) == "cuda" and not recipe.generation.endpoints,
    )
    answering.drop_parts()
    return done


@stage("generate")
def generate(recipe: Recipe, plan: Plan) -> Done:
    """Have the target answer the prompts of this plan, or find the corpus in the store."""
    return found_or_made("corpus", recipe, plan, _make)
