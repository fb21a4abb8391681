"""CFG012 to CFG016: the decoder's fields against each other, the target's, and the stored head."""

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.checks.config import MAX_SIZE
from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, plain

Findings = Iterator[Finding]

# Window that speculators gives every draft layer by default; at or above it, a window is nothing unusual.
USUAL_WINDOW = 2048
# Relative difference below which two floating-point settings are the same number written differently.
SAME_FLOAT = 1e-3


def layer_types_fit(evidence: Evidence) -> Findings:
    """CFG012: layer_types has one entry per layer."""
    types, layers = evidence.config.decoder.get("layer_types"), evidence.config.size("num_hidden_layers")
    if types is None or layers is None:
        return
    if not isinstance(types, list) or len(types) != layers:
        yield fail(
            "layer_types does not have one entry per draft layer; vLLM stops with an assertion.",
            observed=types,
            expected=f"{layers} entries",
        )


def window_covers_context(evidence: Evidence) -> Findings:
    """CFG013: the draft sees as far back as the service's context.

    A warning below the trainer's default window of 2048, or below the served context where that is known; above it a
    note, since nobody knows here how long the served texts are.
    """
    window = _effective_window(evidence)
    served = evidence.training.get("max_model_len")
    context = (
        served if type(served) is int else evidence.target.size("max_position_embeddings") if evidence.target else None
    )
    if window is None:
        return
    if context is None:
        context = evidence.config.size("max_position_embeddings")
    if context is None or window >= context:
        return
    yield fail(
        f"The draft sees only the last {window} tokens; acceptance falls in longer texts.",
        observed=window,
        expected=f">= {context}",
        severity="warning" if served is not None or window < USUAL_WINDOW else "note",
    )


def _effective_window(evidence: Evidence) -> int | None:
    decoder = evidence.config.decoder
    types, window = decoder.get("layer_types"), decoder.get("sliding_window")
    slides = "sliding_attention" in types if isinstance(types, list) else bool(decoder.get("use_sliding_window"))
    return window if slides and type(window) is int and window > 0 else None


def rotary_matches_target(evidence: Evidence) -> Findings:
    """CFG014: rope, norm epsilon and positions are the target's, which the engine does not compare."""
    assert evidence.target is not None
    mine, theirs = evidence.config.decoder, evidence.target.config
    for what, ours, other in (
        ("rope_theta", _rope(mine, "rope_theta"), _rope(theirs, "rope_theta")),
        ("rope scaling", _scaling(mine), _scaling(theirs)),
        ("rms_norm_eps", mine.get("rms_norm_eps"), theirs.get("rms_norm_eps")),
        ("max_position_embeddings", mine.get("max_position_embeddings"), theirs.get("max_position_embeddings")),
    ):
        if ours is not None and other is not None and not _same(ours, other):
            yield fail(
                f"{what} of the draft ({plain(ours)}) is not the target's ({plain(other)}); vLLM does not notice.",
                observed=ours,
                expected=other,
            )


def _rope(config: Mapping[str, Any], key: str) -> Any:
    parameters = config.get("rope_parameters")
    inner = parameters.get(key) if isinstance(parameters, dict) else None
    return inner if inner is not None else config.get(key)


def _scaling(config: Mapping[str, Any]) -> Any:
    for key in ("rope_parameters", "rope_scaling"):
        block = config.get(key)
        if isinstance(block, dict):
            kind = block.get("rope_type", block.get("type", "default"))
            return f"{plain(kind)} x{plain(block.get('factor', 1))}"
    return None


def _same(ours: Any, other: Any) -> bool:
    if isinstance(ours, int | float) and isinstance(other, int | float) and abs(ours) < MAX_SIZE:
        return bool(ours == other or abs(ours - other) <= SAME_FLOAT * abs(other))
    return bool(ours == other)


def heads_divide(evidence: Evidence) -> Findings:
    """CFG015: query heads are a multiple of key heads, and the head size is known."""
    sizes = evidence.sizes
    assert sizes is not None
    if sizes["nq"] % sizes["nkv"]:
        yield fail(
            "num_attention_heads is not a multiple of num_key_value_heads.",
            observed=f"{sizes['nq']} and {sizes['nkv']}",
        )
    if (
        evidence.config.decoder.get("head_dim") is None
        and sizes["H"] % sizes["nq"]
        and evidence.config.family != "deepseek"
    ):
        yield fail(
            "hidden_size is not a multiple of num_attention_heads and head_dim is not set.",
            observed=f"{sizes['H']} and {sizes['nq']}",
            expected="head_dim written out",
        )


def not_tied(evidence: Evidence) -> Findings:
    """CFG016: a head that is smaller than the embedding is not declared as tied to it.

    vLLM ignores the flag, but loaders that honour it replace the head, and a resumed training dies.
    """
    places = {"config.json": evidence.config.raw, evidence.config.place: evidence.config.decoder}
    tied = [place for place, fields in places.items() if fields.get("tie_word_embeddings") is True]
    if tied and evidence.is_pruned and evidence.sizes:
        yield fail(
            f"tie_word_embeddings is true, but the head has {evidence.sizes['D']} rows and the embedding "
            f"{evidence.sizes['V']}: they cannot be one table.",
            observed=f"true in {' and '.join(tied)}",
            expected="false",
        )
