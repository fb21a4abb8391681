"""Stage benchmark: the target alone, with the draft, and with the champion, on prompts that training never saw.

Leaves measurement.json, results-<arm>.jsonl (one line per prompt) and the servers' logs.
Servers run one at a time, in the order A B, then B A, ... so that a drifting machine favours no arm.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from tasks.bench.acceptance import pool_datasets
from tasks.bench.compare import output_agreement, speed_ratios
from tasks.bench.measure import SpeedBlock, measure_acceptance, measure_outputs, measure_speed
from tasks.bench.measurement import GENERAL, SERVICE, Arm, ArmName, Measurement, PromptResult, Speed, results_to_jsonl
from tasks.bench.prompts import identify
from tasks.corpus.conversation import Conversation
from tasks.drafting.publish import SERVED_FILES
from tasks.errors import EvidenceError
from tasks.job import Job, found_or_made
from tasks.prepare import measured_sets
from tasks.progress import Progress
from tasks.recipe.plan import Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import device_of
from tasks.serving.client import Sampling, TargetClient
from tasks.serving.command import Baseline, Mode, WithDraft
from tasks.serving.counters import scrape
from tasks.serving.endpoint import Endpoint
from tasks.serving.launch import launch
from tasks.stage import Done, stage
from tasks.store.artifact import ArtifactRef
from tasks.store.manifest import FileEntry

MEASUREMENT_NAME = "measurement.json"
ANSWER_TIMEOUT_S = 600.0


@dataclass
class ArmRecord:
    """What one arm has shown so far."""

    name: ArmName
    mode: Mode
    fingerprint: str | None
    results: tuple[PromptResult, ...] = ()
    speeds: list[Speed] = field(default_factory=list)

    def frozen(self) -> Arm:
        """Return the arm's figures; a baseline has no acceptance."""
        acceptance = pool_datasets(self.results) if self.fingerprint else ()
        return Arm(name=self.name, fingerprint=self.fingerprint, acceptance=acceptance, speeds=tuple(self.speeds))


def _arms(job: Job) -> list[ArmRecord]:
    draft_tokens = job.recipe.benchmark.draft_tokens
    arms = [ArmRecord("baseline", Baseline(), None)]
    served: list[tuple[ArmName, str]] = [("draft", job.plan.fingerprint("draft"))]
    champion = job.plan.inputs.champion
    if champion is not None:
        served.append(("champion", champion))
    for name, fingerprint in served:
        folder = job.settings.scratch_dir / "draft" / fingerprint[:16] / "served"
        job.artifacts.fetch(ArtifactRef(kind="draft", fingerprint=fingerprint), folder, SERVED_FILES)
        arms.append(ArmRecord(name, WithDraft(folder, draft_tokens), fingerprint))
    return arms


class Session:
    """Measures all arms, one server at a time."""

    def __init__(self, job: Job, sets: dict[str, tuple[Conversation, ...]], arms: list[ArmRecord]) -> None:
        """Prepare the prompts and the progress bar."""
        self._job = job
        self._asked = job.recipe.benchmark
        self._prompts = [item for name in (SERVICE, GENERAL) for item in sets.get(name, ())]
        self._speed_prompts = sets[SERVICE][: self._asked.speed_prompts]
        self._sampling = Sampling(self._asked.max_tokens, self._asked.temperature)
        self._arms = arms
        self._progress = Progress("benchmark")
        self._turns_done = 0

    def run(self) -> None:
        """Measure every arm in every repeat."""
        for arm, repeat in self._turns():
            self._say(arm, f"repeat {repeat + 1}, server starts")
            with self._serve(arm) as endpoint:
                asyncio.run(self._measure(arm, repeat, endpoint))
            self._turns_done += 1
        self._progress.show(1.0, "done")

    def _turns(self) -> Iterator[tuple[ArmRecord, int]]:
        for repeat in range(self._asked.repeats):
            for arm in self._arms if repeat % 2 == 0 else reversed(self._arms):
                yield arm, repeat

    def _serve(self, arm: ArmRecord) -> AbstractContextManager[Endpoint]:
        log = self._job.scratch / f"vllm-{arm.name}.log"
        return launch(self._job.recipe, self._job.settings, self._job.target(), arm.mode, log)

    def _say(self, arm: ArmRecord, text: str) -> None:
        self._progress.show(self._turns_done / (self._asked.repeats * len(self._arms)), f"{arm.name}: {text}")

    async def _measure(self, arm: ArmRecord, repeat: int, endpoint: Endpoint) -> None:
        # Acceptance does not depend on how many requests are in flight, so that set goes through as fast as it can.
        most = max(*self._asked.concurrencies, self._job.recipe.generation.concurrency)
        async with TargetClient(endpoint, most, ANSWER_TIMEOUT_S, num_tries=1) as client:
            for concurrency in self._asked.concurrencies:
                self._say(arm, f"tokens/s at concurrency {concurrency}")
                block = SpeedBlock(arm.name, concurrency, repeat)
                equal_work = replace(self._sampling, ignore_eos=True)
                arm.speeds.append(await measure_speed(client, self._speed_prompts, equal_work, block))
            if repeat == 0:
                arm.results = await self._results(arm, client, endpoint, most)

    async def _results(
        self, arm: ArmRecord, client: TargetClient, endpoint: Endpoint, concurrency: int
    ) -> tuple[PromptResult, ...]:
        """Return the answers' figures: all prompts with a draft, the speed prompts without, to compare outputs."""
        if arm.fingerprint is None:
            return await measure_outputs(client, self._speed_prompts, self._sampling, concurrency=concurrency)

        def progress(done: int, total: int) -> None:
            self._say(arm, f"acceptance, {done} of {total} prompts")

        return await measure_acceptance(
            client,
            self._prompts,
            self._sampling,
            concurrency=concurrency,
            read_counters=lambda: scrape(endpoint),
            progress=progress,
        )


def _agreement(arms: list[ArmRecord]) -> float:
    baseline, draft = arms[0].results, arms[1].results
    asked = {(result.dataset, result.prompt_id) for result in baseline}
    same = [result for result in draft if (result.dataset, result.prompt_id) in asked]
    return output_agreement(same, baseline).fraction


def _read_sets(job: Job) -> dict[str, tuple[Conversation, ...]]:
    sets = measured_sets(job.recipe, job.settings)
    planned = {SERVICE: job.plan.inputs.held_out_sha256, GENERAL: job.plan.inputs.general_sha256}
    for name, prompts in sets.items():
        if identify(prompts).sha256 != planned[name]:
            raise EvidenceError(f"the {name} prompts changed after the run was planned; start it again")
    return sets


def _facts(measurement: Measurement, agreement: float) -> dict[str, str | int | float]:
    draft, baseline = measurement.arm("draft"), measurement.arm("baseline")
    assert draft is not None and baseline is not None
    facts: dict[str, str | int | float] = {"draft_tokens": measurement.draft_tokens}
    for found in draft.acceptance:
        facts[f"acceptance length on {found.dataset}"] = found.acceptance_length
    for ratio in speed_ratios(draft.speeds, baseline.speeds):
        facts[f"speed-up at concurrency {ratio.concurrency}"] = ratio.median
    facts["same_output_fraction"] = agreement
    return facts


def _store(job: Job, measurement: Measurement, arms: list[ArmRecord]) -> list[FileEntry]:
    files = [job.put_json(MEASUREMENT_NAME, measurement)]
    for arm in arms:
        data = results_to_jsonl(arm.results).encode("utf-8")
        files.append(job.artifacts.put_bytes(job.ref, f"results-{arm.name}.jsonl", data))
        files += job.stored_log(f"vllm-{arm.name}.log")
    return files


def _make(job: Job) -> Done:
    recipe, plan = job.recipe, job.plan
    sets = _read_sets(job)
    arms = _arms(job)
    Session(job, sets, arms).run()
    measurement = Measurement(
        draft_tokens=recipe.benchmark.draft_tokens,
        temperature=recipe.benchmark.temperature,
        max_tokens=recipe.benchmark.max_tokens,
        arms=tuple(arm.frozen() for arm in arms),
        engine=plan.inputs.engine,
        prompt_sets={name: identify(prompts) for name, prompts in sets.items()},
    )
    tokens = sum(speed.completion_tokens for arm in arms for speed in arm.speeds)
    tokens += sum(result.completion_tokens for arm in arms for result in arm.results)
    on_gpu = device_of(job.settings) == "cuda"
    return job.finish(
        _store(job, measurement, arms), _facts(measurement, _agreement(arms)), tokens=tokens, on_gpu=on_gpu
    )


@stage("benchmark")
def benchmark(recipe: Recipe, plan: Plan) -> Done:
    """Measure the draft of this plan, or find its measurement in the store."""
    return found_or_made("measurement", recipe, plan, _make)
