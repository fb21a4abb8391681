"""TGT: the draft beside the target that it is to serve."""

from collections.abc import Iterator
from typing import Any

from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, good, listed, plain, skip

Findings = Iterator[Finding]


def target_class_supports_eagle3(evidence: Evidence) -> Findings:
    """TGT001: the engine's class for the target hands out hidden states.

    A class that the engine's registry does not list at all is a warning: it may run through a generic class.
    """
    assert evidence.target is not None
    names, engine = evidence.target.architectures, evidence.engine
    if not names:
        yield fail("The target's config names no architecture.", observed="none", severity="warning")
    elif names[0] in engine.other_models:
        yield fail(
            f"{names[0]} does not implement EAGLE-3 in {engine.name}: it cannot hand its hidden states to a draft.",
            observed=names[0],
            expected=f"one of {len(engine.targets)} classes that do",
        )
    elif names[0] not in engine.targets:
        yield fail(
            f"{engine.name} does not list {plain(names[0])}; whether it can serve EAGLE-3 drafts is not known.",
            observed=plain(names[0]),
            severity="warning",
        )


def widths_match(evidence: Evidence) -> Findings:
    """TGT002: the target's hidden size is the width that the draft takes."""
    assert evidence.target is not None
    theirs, sizes = evidence.target.size("hidden_size"), evidence.sizes
    if theirs is None or sizes is None or theirs == sizes["T"]:
        return
    declared = "target_hidden_size" if sizes["T"] != sizes["H"] else "the draft's hidden_size, taken for the target's"
    yield fail(
        f"The target's hidden states are {theirs} wide, the draft takes {sizes['T']} ({declared}).",
        observed=sizes["T"],
        expected=theirs,
        mend=f"add target_hidden_size: {theirs} to config.json, if fc was trained for it",
    )


def embedding_is_the_targets(evidence: Evidence) -> Findings:
    """TGT003: the stored embedding is the target's table.

    An error when embed_requires_grad is false (frozen, so it can only differ by mistake), else a warning: a draft may
    train its own.
    """
    yield from _rows_equal(evidence, "embed_tokens.weight", "error" if _is_frozen(evidence) else "warning")


def _is_frozen(evidence: Evidence) -> bool:
    return evidence.config.raw.get("embed_requires_grad") is False


def head_is_the_targets(evidence: Evidence) -> Findings:
    """TGT005: the stored head holds the target's rows. A note: other trainers train the head, and vLLM keeps it."""
    yield from _rows_equal(evidence, "lm_head.weight", "note")


def _rows_equal(evidence: Evidence, name: str, severity: Any) -> Findings:
    if name not in evidence.tensors:
        yield good(f"{name} is not stored: the target's is shared.")
    elif name in evidence.no_rows:
        yield skip(f"{name} could not be compared: {plain(evidence.no_rows[name])}")
    elif name not in evidence.scan.rows:
        yield skip(f"{name} was not read")
    else:
        count = evidence.scan.rows[name]
        if count.num_different:
            yield fail(
                f"{count.num_different} of {count.num_rows} rows of {name} are not the target's (the first is row "
                f"{count.first_different}): trained elsewhere, exported at random, or another target.",
                observed=f"{count.num_different} rows differ",
                expected="the target's rows",
                severity=severity,
            )
        else:
            yield good(f"all {count.num_rows} rows of {name} are the target's.")


def target_is_the_trained_one(evidence: Evidence) -> Findings:
    """TGT004: the target at hand is the one that the draft was trained for, as far as both are recorded."""
    target = evidence.target
    assert target is not None
    trained, serving = evidence.training.get("target_identity"), evidence.training.get("serving_target_identity")
    if trained is not None and serving is not None and trained != serving:
        yield fail(
            "The target's config, tokenizer or weights are not those that the draft was trained for.",
            observed=serving,
            expected=trained,
        )
    recorded = _recorded_architectures(evidence)
    if recorded and target.architectures and not set(recorded) & set(target.architectures):
        yield fail(
            f"The draft was made for a {listed(recorded)}, the target at hand is a {listed(target.architectures)}.",
            observed=listed(target.architectures),
            expected=listed(recorded),
        )


def _recorded_architectures(evidence: Evidence) -> list[str]:
    inner = evidence.config.raw.get("speculators_config")
    verifier = inner.get("verifier") if isinstance(inner, dict) else None
    names = verifier.get("architectures") if isinstance(verifier, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
