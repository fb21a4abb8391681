"""The estimate of a production: tokens, bytes and seconds per artifact. Pure: nothing is read or asked here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.estimate.pace import (
    CPU,
    CUDA,
    MOVE_BYTES_PER_S,
    RULE_OF_THUMB,
    TRAINER_START_S,
    Machine,
    PastRun,
    seconds_from,
)
from tasks.estimate.shapes import DraftShape, active_parameters, draft_shape
from tasks.estimate.tokens import PromptTokens
from tasks.pages.estimate import Estimate, StageEstimate
from tasks.recipe.plan import Kind
from tasks.recipe.recipe import Recipe
from tasks.states.packing import estimate_bytes
from tasks.store.manifest import Manifest
from tasks.store.retention import NEEDED_FOR

# The final state is captured besides the layers that feed the draft.
FINAL_SLOTS = 1
# Token id and loss mask of a corpus row, before compression.
ROW_BYTES = 5
# Logs of servers, results, JSON; and what the trainer writes to its log per step.
SMALL_FILES_BYTES = 2**20
STEP_LOG_BYTES = 2 * 2**10
# A stage that starts nothing.
SMALL_STAGE_S = 2.0


@dataclass(frozen=True)
class Request:
    """All that an estimate is made from."""

    recipe: Recipe
    config: Mapping[str, Any]
    """The target's flat config."""
    target_bytes: int
    num_taps: int
    """Target layers that feed the draft."""
    prompts: PromptTokens
    service: PromptTokens
    """Held-out prompts at benchmark.max_tokens."""
    general: PromptTokens = PromptTokens()
    has_champion: bool = False
    device: Literal["cpu", "cuda"] = "cpu"
    num_cpus: int = 1
    done: Mapping[Kind, Manifest] = field(default_factory=dict)
    """Artifacts that are in the store."""
    past: Mapping[Kind, tuple[PastRun, ...]] = field(default_factory=dict)
    """What earlier artifacts took, by kind, under the same circumstances."""
    on_scratch: Mapping[Kind, int] = field(default_factory=dict)
    """Bytes of this plan's working files that are there already."""


@dataclass(frozen=True)
class _Work:
    """What one artifact takes when it has to be made."""

    tokens: int
    store_bytes: int
    scratch_bytes: int
    start_s: float
    seconds: float


class _Production:
    """The works of a production, one method per kind."""

    def __init__(self, given: Request) -> None:
        self._given = given
        self._recipe = given.recipe
        self._shape: DraftShape = draft_shape(
            given.config, given.recipe.draft, given.num_taps, given.recipe.vocabulary.draft_size
        )
        self._server = self._machine(given.device, _gpus_per_server(given.recipe))
        self.row_tokens = self._row_tokens()

    def _machine(self, device: Literal["cpu", "cuda"], num_gpus: int) -> Machine:
        pace, units = (CUDA, num_gpus) if device == "cuda" else (CPU, self._given.num_cpus)
        return Machine(pace, units, active_parameters(self._given.config), self._given.target_bytes)

    def _row_tokens(self) -> int:
        """Return the tokens of all rows: counted, where a corpus or its states are there, else the bound."""
        for kind in ("states", "corpus"):
            made = self._given.done.get(kind)
            if made is not None and isinstance(made.facts.get("tokens"), int):
                return int(made.facts["tokens"])
        return self._given.prompts.tokens

    def corpus(self) -> _Work:
        """The answers; servers that run already are taken for GPUs."""
        asked, prompts = self._recipe.generation, self._given.prompts
        size = ROW_BYTES * prompts.tokens + SMALL_FILES_BYTES
        server, start = self._server, self._server.start_s
        if asked.endpoints:
            server, start = self._machine("cuda", len(asked.endpoints) * _gpus_per_server(self._recipe)), 0.0
        seconds = server.prefill_s(prompts.prompt_tokens) + server.decode_s(prompts.answer_tokens, asked.concurrency)
        return _Work(prompts.answer_tokens, size, size, start, seconds)

    def states_bytes(self) -> int:
        """Return the bytes of the hidden states: tokens x slots x hidden x bytes."""
        dtype = "F32" if str(self._recipe.vllm.get("dtype")) in ("float", "float32") else "BF16"
        slots = self._given.num_taps + FINAL_SLOTS
        return estimate_bytes(self.row_tokens, slots, int(self._given.config["hidden_size"]), dtype)

    def states(self) -> _Work:
        """The hidden states; they stay on scratch, where the training reads them."""
        size = self.states_bytes()
        seconds = self._server.prefill_s(self.row_tokens) + size / MOVE_BYTES_PER_S
        fetched = self._fetched("corpus", ROW_BYTES * self.row_tokens)
        return _Work(self.row_tokens, size, size + fetched, self._server.start_s, seconds)

    def vocabulary(self) -> _Work:
        """The map and the counts of the supervised tokens."""
        size = 9 * int(self._given.config["vocab_size"]) + 8 * self._recipe.vocabulary.draft_size
        tokens = min(self._given.prompts.answer_tokens, self.row_tokens)
        return _Work(tokens, size, size, 0.0, SMALL_STAGE_S)

    def draft(self) -> _Work:
        """All epochs with their training state, which are kept until the best one is chosen, and the draft itself."""
        training = self._recipe.training
        tokens = training.epochs * self.row_tokens
        steps = tokens // training.sequence_tokens + training.epochs
        size = training.epochs * self._shape.epoch_bytes + self._shape.weight_bytes
        size += steps * STEP_LOG_BYTES + SMALL_FILES_BYTES
        fetched = self._fetched("states", self.states_bytes()) + ROW_BYTES * self.row_tokens
        trainer = self._machine(self._given.device, training.num_processes)
        flops = self._shape.training_flops(training.ttt_steps)
        seconds = trainer.train_s(tokens, flops, training.sequence_tokens) + size / MOVE_BYTES_PER_S
        return _Work(tokens, size, size + fetched, TRAINER_START_S, seconds)

    def verdict(self) -> _Work:
        """The rules; at level engine also a server."""
        start = SMALL_STAGE_S + (self._server.start_s if self._recipe.verification.level == "engine" else 0.0)
        size = self._shape.weight_bytes
        return _Work(0, SMALL_FILES_BYTES, size, start, size / MOVE_BYTES_PER_S)

    def measurement(self) -> _Work:
        """The arms, each with servers of its own: tokens/s at each concurrency, then the answers to all prompts."""
        asked, served = self._recipe.benchmark, 2 if self._given.has_champion else 1
        service, general = self._given.service, self._given.general
        arms = (served + 1) * asked.repeats
        share = min(1.0, asked.speed_prompts / max(service.num_prompts, 1))
        block, prompt_block = share * service.answer_tokens, share * service.prompt_tokens
        answers = block + served * (service.answer_tokens + general.answer_tokens)
        prompts = arms * len(asked.concurrencies) * prompt_block
        prompts += prompt_block + served * (service.prompt_tokens + general.prompt_tokens)
        seconds = self._server.prefill_s(prompts)
        seconds += sum(arms * self._server.decode_s(block, concurrency) for concurrency in asked.concurrencies)
        seconds += self._server.decode_s(answers, max(*asked.concurrencies, self._recipe.generation.concurrency))
        tokens = round(arms * len(asked.concurrencies) * block + answers)
        size = served * self._shape.weight_bytes
        return _Work(tokens, (served + 1) * SMALL_FILES_BYTES, size, arms * self._server.start_s, seconds)

    def package(self) -> _Work:
        """The folder to deploy."""
        size = self._shape.weight_bytes + SMALL_FILES_BYTES
        return _Work(0, size, 0, SMALL_STAGE_S, size / MOVE_BYTES_PER_S)

    def _fetched(self, kind: Kind, size: int) -> int:
        """Return the bytes of an input that have to be fetched: made elsewhere or earlier, and not on scratch."""
        return max(0, size - self._given.on_scratch.get(kind, 0)) if kind in self._given.done else 0


def _gpus_per_server(recipe: Recipe) -> int:
    vllm = {key.replace("-", "_"): value for key, value in recipe.vllm.items()}
    sizes = [vllm.get(f"{axis}_parallel_size", 1) for axis in ("tensor", "pipeline", "data")]
    product = 1
    for size in sizes:
        product *= size if isinstance(size, int) and size > 0 else 1
    return product


def estimate_production(given: Request) -> Estimate:
    """Return what every artifact of a production takes; one that is in the store takes nothing.

    A release, which only the nightly flow makes, is a pointer and a record: not worth a line.
    """
    production = _Production(given)
    works: dict[Kind, Callable[[], _Work]] = {
        "corpus": production.corpus,
        "states": production.states,
        "vocabulary": production.vocabulary,
        "draft": production.draft,
        "verdict": production.verdict,
        "measurement": production.measurement,
        "package": production.package,
    }
    return Estimate(tuple(_stage(kind, work(), given) for kind, work in works.items()))


def _stage(kind: Kind, work: _Work, given: Request) -> StageEstimate:
    if kind in given.done or NEEDED_FOR.get(kind) in given.done:
        return StageEstimate(kind)
    known = seconds_from(given.past.get(kind, ()), work.tokens, work.start_s)
    seconds, basis = known or (work.start_s + work.seconds, RULE_OF_THUMB)
    return StageEstimate(
        kind=kind,
        tokens=work.tokens,
        store_bytes=work.store_bytes,
        scratch_bytes=max(0, work.scratch_bytes - given.on_scratch.get(kind, 0)),
        seconds=seconds,
        basis=basis,
    )
