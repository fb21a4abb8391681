"""What one benchmark leaves behind: the figures of every arm, frozen, as JSON.

An arm is one way to serve the target: baseline (no draft), draft (the challenger), champion (the draft in service).
A data set is named like "service" or, for a part of a set, "general/code"; "general" is then the whole of its parts.

    {"formula": "1 + accepted / steps, pooled over verify steps", "draft_tokens": 3, "temperature": 0.0,
     "max_tokens": 128, "arms": [{"name": "draft", "fingerprint": "9f2c...", "acceptance": [{"dataset": "service",
     "num_prompts": 96, "num_steps": 7000, "num_accepted": 4480, "acceptance_length": 1.64,
     "per_position": [0.41, 0.16, 0.07]}], "speeds": [{"arm": "draft", "concurrency": 1, "repeat": 0, ...}]}],
     "engine": {"vllm": "0.32.0"}, "prompt_sets": {"service": {"sha256": "51ab...", "count": 96}}}
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from tasks.errors import EvidenceError

# Tools count acceptance length in different ways (some add the prefill token), so the way is part of the data.
FORMULA: Final = "1 + accepted / steps, pooled over verify steps"
SERVICE = "service"
GENERAL = "general"

ArmName = Literal["baseline", "draft", "champion"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[FiniteFloat, Field(ge=0.0, le=1.0)]
Seconds = Annotated[FiniteFloat, Field(ge=0.0)]


class Frozen(BaseModel):
    """Base of the shapes here: immutable, closed, without NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PromptResult(Frozen):
    """What one prompt's answer cost; without a draft, num_steps is 0 and the histogram is empty."""

    prompt_id: str
    dataset: str
    num_steps: Count
    num_accepted: Count
    histogram: tuple[Count, ...]
    completion_tokens: Count
    prompt_tokens: Count
    latency_s: Seconds
    output_sha256: str


class Acceptance(Frozen):
    """Acceptance pooled over the prompts of one data set.

    per_position[i] is the share of verify steps that accepted draft position i (0-based), not conditional on the
    positions before; acceptance_length = 1 + its sum.
    """

    dataset: str
    num_prompts: Positive
    num_steps: Positive
    num_accepted: Count
    acceptance_length: Annotated[FiniteFloat, Field(ge=1.0)]
    per_position: tuple[Rate, ...]

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Return the share of steps that accepted position i among those that accepted i - 1; None: no such step."""
        before = (1.0, *self.per_position)
        return tuple(
            rate / reached if reached > 0 else None for rate, reached in zip(self.per_position, before, strict=False)
        )


class Speed(Frozen):
    """Output tokens per second of one arm at one concurrency, in one repeat."""

    arm: ArmName
    concurrency: Positive
    repeat: Count
    num_prompts: Positive
    completion_tokens: Positive
    wall_s: Annotated[FiniteFloat, Field(gt=0.0)]
    tok_per_s: Annotated[FiniteFloat, Field(gt=0.0)]


class Arm(Frozen):
    """The figures of one way to serve the target; a baseline has no fingerprint and no acceptance."""

    name: ArmName
    fingerprint: str | None
    acceptance: tuple[Acceptance, ...]
    speeds: tuple[Speed, ...]

    def acceptance_on(self, dataset: str) -> Acceptance | None:
        """Return the pooled acceptance on a data set, or None when it was not measured."""
        return next((found for found in self.acceptance if found.dataset == dataset), None)


class PromptSetIdentity(Frozen):
    """Which prompts were used: sha256 of the frozen set, and how many."""

    sha256: str
    count: Positive


class Measurement(Frozen):
    """One benchmark: the same prompts through every arm, on one engine build, in one session."""

    formula: Literal["1 + accepted / steps, pooled over verify steps"] = FORMULA
    draft_tokens: Positive
    temperature: Annotated[FiniteFloat, Field(ge=0.0)]
    max_tokens: Positive
    arms: tuple[Arm, ...]
    engine: dict[str, str]
    prompt_sets: dict[str, PromptSetIdentity]

    def arm(self, name: ArmName) -> Arm | None:
        """Return an arm by its name, or None when it was not measured."""
        return next((found for found in self.arms if found.name == name), None)


def parse_measurement(text: str | bytes, where: str) -> Measurement:
    """Return the measurement in a JSON document. Raises EvidenceError; where is for the message."""
    try:
        return Measurement.model_validate_json(text)
    except ValidationError as error:
        raise EvidenceError(f"{where} is not a measurement: {_first_fault(error)}. Measure again.") from error


def results_to_jsonl(results: tuple[PromptResult, ...]) -> str:
    """Return per-prompt results as JSON lines, one prompt a line."""
    return "".join(f"{result.model_dump_json()}\n" for result in results)


def parse_results(text: str, where: str) -> tuple[PromptResult, ...]:
    """Return per-prompt results from JSON lines. Raises EvidenceError that names the line."""
    results = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            results.append(PromptResult.model_validate_json(line))
        except ValidationError as error:
            raise EvidenceError(f"{where}, line {number} is not a prompt result: {_first_fault(error)}") from error
    return tuple(results)


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}"
