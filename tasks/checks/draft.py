"""The check of a draft: everything that can be known about it without starting an engine.

    verdict = check_draft(LocalFolder(Path("my-draft")), level="full", target=Path("my-target"))
    verdict.outcome   # PASS, WARN or FAIL

A bad draft is a verdict, never an exception; what cannot be looked at at all is an EvidenceError.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from tasks.checks.contract import ENGINES, Engine
from tasks.checks.epochs import Run, choose, is_run, read_run
from tasks.checks.evidence import Evidence, gather
from tasks.checks.finding import plain
from tasks.checks.rules import ENGINE_RULES, RULES, applied, rules_of
from tasks.checks.rules_tensors import count_parameters
from tasks.checks.source import ByteSource, Subfolder
from tasks.checks.verdict import LEVELS, CheckResult, Level, Severity, Verdict, conclude
from tasks.errors import RecipeError


def check_draft(
    source: ByteSource,
    *,
    level: Level = "full",
    target: Path | None = None,
    engine: str = "vllm-0.32",
    training_facts: Mapping[str, Any] | None = None,
    severities: Mapping[str, Severity] | None = None,
) -> Verdict:
    """Return the verdict on the draft in source; of a run folder, on its best complete epoch.

    training_facts, all optional: layer_ids, target_identity and serving_target_identity, max_model_len,
    previous_sha256. severities: rule id to severity.
    Raises EvidenceError: source or target cannot be read. RecipeError: unknown level, engine or rule.
    """
    contract = _engine(engine, level, severities or {})
    run: Run | None = None
    if is_run(source):
        run = read_run(source)
        chosen = choose(run)
        source = Subfolder(source, chosen.name) if chosen else source
    evidence = gather(source, level, contract, target, training_facts or {}, run)
    inside, outside = rules_of(level)
    results = [result for rule in inside for result in applied(rule, evidence, severities or {})]
    not_checked = [f"{rule.id} {rule.title} (level {rule.level})" for rule in outside]
    not_checked += [f"{rule} {title} (level engine)" for rule, title in ENGINE_RULES.items()]
    not_checked += _unjudged(results)
    return conclude(level, results, not_checked, _facts(evidence))


def _engine(name: str, level: str, severities: Mapping[str, str]) -> Engine:
    if level not in LEVELS:
        raise RecipeError(f"there is no level {level!r}; the levels are {', '.join(LEVELS)}.")
    if name not in ENGINES:
        raise RecipeError(f"there is no contract for engine {name!r}; known are {', '.join(ENGINES)}.")
    known = {rule.id for rule in RULES}
    for rule, severity in severities.items():
        if rule not in known or severity not in get_args(Severity):
            raise RecipeError(f"severities: {rule} = {severity!r} is not a rule with error, warning or note.")
    return ENGINES[name]


def _unjudged(results: list[CheckResult]) -> list[str]:
    return [f"{result.rule} {result.message}" for result in results if result.outcome == "skipped"]


def _facts(evidence: Evidence) -> dict[str, Any]:
    config, sizes = evidence.config, evidence.sizes
    facts: dict[str, Any] = {
        "path": plain(evidence.label),
        "engine": evidence.engine.name,
        "format": config.layout,
        "decoder": config.family,
        "num_parameters": count_parameters(evidence),
        "num_bytes": evidence.weights.num_bytes,
        "num_tensors": len(evidence.tensors),
        "layer_ids": list(config.ids) if config.ids else None,
        "hidden_size": sizes["H"] if sizes else None,
        "vocab_size": sizes["V"] if sizes else None,
        "draft_vocab_size": sizes["D"] if sizes else None,
    }
    if evidence.scan.sha256:
        facts["sha256"] = {plain(file): digest for file, digest in evidence.scan.sha256.items()}
    if evidence.target is not None:
        facts["target"] = plain(str(evidence.target.folder))
        for key in ("vocab_size", "hidden_size", "num_hidden_layers"):
            facts[f"target_{key}"] = evidence.target.size(key)
    if evidence.run is not None:
        facts["epoch"] = evidence.name
        facts["best_epoch"] = evidence.run.best
        facts["epochs"] = {epoch.name: list(epoch.missing) for epoch in evidence.run.epochs}
    return facts
