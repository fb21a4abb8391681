"""The model card of a released draft: README.md in Markdown, made only of figures that are at hand.

What was not measured or recorded is left out, never guessed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tasks.bench.measurement import Arm, Measurement
from tasks.checks.verdict import Verdict


@dataclass(frozen=True)
class CardFacts:
    """What a card is written from; the mappings are printed as they are, in their order."""

    name: str
    target: str
    draft_tokens: int
    verdict: Verdict
    measurement: Measurement | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    training: Mapping[str, object] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    license: str = ""


def model_card(facts: CardFacts) -> str:
    """Return the text of README.md."""
    parts = [
        _front_matter(facts),
        f"# {facts.name}",
        f"An EAGLE-3 draft model for speculative decoding of `{facts.target}`: the target's answers stay the same, "
        "they come in fewer steps.",
        _serving(facts),
        _acceptance(facts.measurement),
        _speed(facts.measurement),
        _listed("Data", facts.data),
        _listed("Training", facts.training),
        _checked(facts.verdict),
        _listed("Provenance", facts.provenance),
        "This folder holds `config.json` and the weights. Optimizer and scheduler state, training code and run files "
        "are left out: no engine needs them.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: CardFacts) -> str:
    lines = [f"base_model: {json.dumps(facts.target)}", "tags: [speculative-decoding, eagle3]"]
    if facts.license:
        lines.append(f"license: {json.dumps(facts.license)}")
    return "\n".join(["---", *lines, "---"])


def _serving(facts: CardFacts) -> str:
    config = {"method": "eagle3", "model": facts.name, "num_speculative_tokens": facts.draft_tokens}
    engine = facts.verdict.facts.get("engine", "vllm")
    return (
        f"## Serving ({engine})\n\n```bash\nvllm serve {facts.target} \\\n"
        f"  --speculative-config '{json.dumps(config)}'\n```"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _acceptance(measurement: Measurement | None) -> str:
    arm = measurement.arm("draft") if measurement else None
    if measurement is None or arm is None or not arm.acceptance:
        return ""
    positions = max(len(one.per_position) for one in arm.acceptance)
    header = ["prompts", "number", "acceptance length", *(f"position {at + 1}" for at in range(positions))]
    rows = [
        [one.dataset, one.num_prompts, f"{one.acceptance_length:.3f}", *(f"{rate:.3f}" for rate in one.per_position)]
        for one in arm.acceptance
    ]
    note = (
        f"Acceptance length: {measurement.formula}; {measurement.draft_tokens} draft tokens, temperature "
        f"{measurement.temperature:g}. A position's figure is the share of all steps that accepted it."
    )
    return f"## Acceptance\n\n{_table(header, rows)}\n\n{note}"


def _speed(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    with_draft, without = _rates(measurement.arm("draft")), _rates(measurement.arm("baseline"))
    rows = [
        [requests, f"{without[requests]:.1f}", f"{rate:.1f}", f"{rate / without[requests]:.2f}x"]
        for requests, rate in sorted(with_draft.items())
        if requests in without
    ]
    if not rows:
        return ""
    engine = ", ".join(f"{key} {value}" for key, value in sorted(measurement.engine.items()))
    header = ("requests at a time", "tok/s without", "tok/s with", "speed-up")
    return f"## Speed\n\n{_table(header, rows)}\n\nMean over the repeats of one session. Engine: {engine}."


def _rates(arm: Arm | None) -> dict[int, float]:
    """Return mean tokens per second by concurrency."""
    found: dict[int, list[float]] = {}
    for speed in arm.speeds if arm else ():
        found.setdefault(speed.concurrency, []).append(speed.tok_per_s)
    return {requests: sum(rates) / len(rates) for requests, rates in found.items()}


def _checked(verdict: Verdict) -> str:
    loud = [fault for fault in verdict.faults if fault.severity != "note"]
    passed = sum(1 for result in verdict.results if result.outcome == "pass")
    size = f"{verdict.facts.get('num_parameters', 0):,} parameters, {verdict.facts.get('num_bytes', 0):,} bytes"
    lines = [f"{verdict.outcome} at level {verdict.level}: {passed} checks passed. {size}."]
    lines += [f"- {fault.severity} {fault.rule}: {_cell(fault.message)}" for fault in loud]
    sha256 = verdict.facts.get("sha256")
    if isinstance(sha256, dict):
        lines += [f"- sha256 of `{file}`: `{digest}`" for file, digest in sha256.items()]
    return "## Checks\n\n" + "\n".join(lines)


def _listed(title: str, values: Mapping[str, object]) -> str:
    rows = [[key.replace("_", " "), value] for key, value in values.items() if value is not None]
    return f"## {title}\n\n{_table(('', ''), rows)}" if rows else ""
