"""RUN: the draft in a running engine: one greedy request, then at least 500 draft steps.

Acceptance length here is 1 + accepted / steps, pooled over all requests. What training predicts is
1 + the sum of full_acc_i of its validation: teacher-forced, and over tokens of the draft vocabulary only, so it is
optimistic, and of the training's own texts.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.checks.finding import plain
from tasks.checks.rules import ENGINE_RULES
from tasks.checks.verdict import CheckResult, Severity, Verdict, conclude
from tasks.errors import RequestUnanswered, ServerError, ServerNotReady
from tasks.serving.client import Sampling, TargetClient
from tasks.serving.command import Place, ServedModel, VllmArgs, WithDraft, server_command
from tasks.serving.counters import Counters, difference, scrape
from tasks.serving.endpoint import Endpoint
from tasks.serving.server import managed_server

MIN_STEPS = 500
# Share of the predicted acceptance length below which flags, layers or target are probably wrong.
MIN_SHARE_OF_PREDICTION = 0.85
REQUESTS_AT_ONCE = 4
ANSWER_TOKENS = 96
MAX_ROUNDS = 40
REQUEST_TIMEOUT_S = 600.0
FULL_ACCURACY = re.compile(r"full_acc_(\d+)_epoch")
LAYERS_LINE = re.compile(r"Using auxiliary layers from speculative config: \(([\d, ]+)\)")
# Everyday questions, when no prompts of the service are given.
PROMPTS = (
    "Explain why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "List the steps for baking bread at home.",
    "What is the difference between a list and a tuple in Python?",
    "Summarise how a bill becomes a law.",
    "Give me a plan for learning to play chess.",
    "How does a vaccine train the immune system?",
    "Describe a walk through an old town in autumn.",
)


@dataclass(frozen=True)
class Trial:
    """What to start, and what to ask it."""

    draft: Path
    target: Path
    place: Place
    run_folder: Path
    log_path: Path
    draft_tokens: int = 3
    start_s: float = 900.0
    vllm: VllmArgs = field(default_factory=dict)
    prompts: Sequence[str] = PROMPTS
    layer_ids: tuple[int, ...] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


def predicted_length(metrics: Mapping[str, Any], draft_tokens: int) -> float | None:
    """Return 1 + the sum of full_acc_i over the draft positions that are served, or None without such metrics."""
    found = {int(match[1]): value for key, value in metrics.items() if (match := FULL_ACCURACY.fullmatch(key))}
    usable = [found[at] for at in range(draft_tokens) if isinstance(found.get(at), float)]
    return 1.0 + sum(usable) if usable else None


def check_live(trial: Trial) -> list[CheckResult]:
    """Start the engine with the draft, ask it, stop it; return the results of RUN001 to RUN004.

    Raises ServerNotReady or RequestUnanswered when it takes too long, CommandError when there is no vLLM: that says
    nothing of the draft.
    """
    served = ServedModel(str(trial.target.resolve()), trial.target.name)
    command = server_command(served, WithDraft(trial.draft.resolve(), trial.draft_tokens), trial.place, trial.vllm)
    measured: Counters | None = None
    error = ""
    try:
        with managed_server(
            command, log_path=trial.log_path, start_deadline_s=trial.start_s, run_folder=trial.run_folder
        ) as endpoint:
            measured = asyncio.run(_ask(endpoint, trial.prompts))
    except (ServerNotReady, RequestUnanswered):
        raise
    except ServerError as problem:
        error = str(problem)
    log = trial.log_path.read_text(encoding="utf-8", errors="replace") if trial.log_path.is_file() else ""
    return [_answers(error), *_accepts(measured), *_as_predicted(measured, trial), *_layers(log, trial)]


async def _ask(endpoint: Endpoint, prompts: Sequence[str]) -> Counters:
    """Return what the engine drafted for the prompts, asked again until there were enough steps."""
    async with TargetClient(endpoint, REQUESTS_AT_ONCE, REQUEST_TIMEOUT_S) as client:
        sampling = Sampling(max_tokens=ANSWER_TOKENS)
        before = scrape(endpoint)
        await client.chat([{"role": "user", "content": prompts[0]}], sampling)
        for round_number in range(MAX_ROUNDS):
            again = f" ({round_number + 1})" if round_number else ""
            asks = [client.chat([{"role": "user", "content": f"{text}{again}"}], sampling) for text in prompts]
            await asyncio.gather(*asks)
            counted = difference(before, scrape(endpoint))
            if counted.num_drafts >= MIN_STEPS:
                break
    return counted


def _result(rule: str, severity: Severity, problem: str, good: str, **more: str) -> CheckResult:
    outcome = "fail" if problem else "pass"
    return CheckResult.model_validate(
        {"rule": rule, "severity": severity, "outcome": outcome, "message": problem or good, "read": "engine", **more}
    )


def _answers(error: str) -> CheckResult:
    lines = error.strip().splitlines()
    shown = plain(" ".join([lines[0], *lines[-2:]])) if lines else ""
    problem = f"The engine with this draft does not start, or fails on the first request: {shown}" if error else ""
    return _result("RUN001", "error", problem, "The engine answers with this draft.", observed=shown)


def _accepts(measured: Counters | None) -> Iterator[CheckResult]:
    if measured is None:
        return
    length = 1 + measured.num_accepted / measured.num_drafts
    seen = f"{measured.num_accepted} of {measured.num_drafted} in {measured.num_drafts} steps"
    problem = "" if measured.num_accepted else "Not one draft token was accepted: NaN, a wrong method, or other layers."
    yield _result("RUN002", "error", problem, f"Accepted {seen}: acceptance length {length:.3f}.", observed=seen)


def _as_predicted(measured: Counters | None, trial: Trial) -> Iterator[CheckResult]:
    predicted = predicted_length(trial.metrics, trial.draft_tokens)
    if measured is None or predicted is None:
        return
    length = 1 + measured.num_accepted / measured.num_drafts
    text = (
        f"Training predicted an acceptance length of {predicted:.3f} (1 + sum of full_acc, on its own texts), "
        f"serving gives {length:.3f} (1 + accepted / steps, on {len(trial.prompts)} prompts)"
    )
    low = length < MIN_SHARE_OF_PREDICTION * predicted
    problem = f"{text}: other prompts, norm flags, layer ids or another target." if low else ""
    yield _result(
        "RUN003", "warning", problem, f"{text}.", observed=f"{length:.3f}", expected=f">= {0.85 * predicted:.3f}"
    )


def _layers(log: str, trial: Trial) -> Iterator[CheckResult]:
    found = LAYERS_LINE.search(log)
    if found is None or trial.layer_ids is None:
        return
    used = tuple(int(part) for part in found[1].split(",") if part.strip())
    problem = ""
    if sorted(used) != sorted(trial.layer_ids):
        problem = f"The engine uses layers {list(used)}, the config says {list(trial.layer_ids)}."
    yield _result("RUN004", "error", problem, f"The engine uses layers {list(used)}, as the config says.")


def with_engine(verdict: Verdict, results: Sequence[CheckResult]) -> Verdict:
    """Return the verdict at level engine: what the bytes say and what the engine did."""
    judged = {result.rule for result in results}
    bytes_left = [line for line in verdict.not_checked if line.split(" ", 1)[0] not in ENGINE_RULES]
    left = [f"{rule} had nothing to compare with" for rule in ("RUN003", "RUN004") if results and rule not in judged]
    if not results:
        left = ["RUN001 to RUN004: no engine was started, because the bytes of the draft failed already"]
    return conclude("engine", [*verdict.results, *results], [*bytes_left, *left], verdict.facts)
