"""CFG: what config.json says, and whether the engine reads it the way the trainer meant it."""

from collections.abc import Iterator

from tasks.checks.config import DECODER_KEY, NESTING_KEYS, missing_sizes
from tasks.checks.evidence import Evidence, is_packed
from tasks.checks.finding import Finding, fail, good, listed, plain

Findings = Iterator[Finding]

NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def config_is_json(evidence: Evidence) -> Findings:
    """CFG001: config.json exists and is a JSON object."""
    if evidence.config_file.value is None:
        yield fail(f"{evidence.config_file.fault}, so this is not a draft folder.", expected="a JSON object")


def layout_is_known(evidence: Evidence) -> Findings:
    """CFG002: one of the two layouts that the engine recognises; says who reads it."""
    if evidence.config_file.value is not None and evidence.config.layout == "unknown":
        yield fail(
            "This is neither a speculators checkpoint (speculators_config) nor a plain EAGLE-3 one "
            "(model_type + architectures): vLLM answers 'Unrecognized model'.",
            observed=f"keys {listed(sorted(evidence.config.raw)[:20])}",
        )
    elif evidence.is_native:
        yield good("Original EAGLE layout: vLLM, SGLang and the EAGLE code read it; speculators has to convert it.")
    elif evidence.config_file.value is not None:
        yield good(f"{evidence.config.layout} layout: vLLM reads it.")


def no_top_level_model_type(evidence: Evidence) -> Findings:
    """CFG003: a speculators config has no top-level model_type."""
    if evidence.config.layout == "speculators" and evidence.config.raw.get("model_type") is not None:
        kind = plain(evidence.config.raw["model_type"])
        yield fail(
            f"vLLM ignores speculators_config when there is a top-level model_type ({kind}), "
            "and then does not recognise the model.",
            observed=kind,
            expected="no such key",
            mend="remove model_type from the top level of config.json",
        )


def algorithm_is_eagle3(evidence: Evidence) -> Findings:
    """CFG004: the algorithm is the one that these rules describe."""
    if evidence.config.layout != "speculators":
        return
    kind = evidence.config.raw.get("speculators_model_type")
    if kind == "eagle3":
        return
    if isinstance(kind, str) and kind in evidence.engine.algorithms:
        yield fail(
            f"This is a {kind} draft: {evidence.engine.name} knows the algorithm, but these rules describe eagle3 "
            "only, so its layers and tensors were not judged.",
            observed=kind,
            expected="eagle3",
        )
    else:
        yield fail(
            f"speculators_model_type is not an algorithm that {evidence.engine.name} has.",
            observed=kind,
            expected=" / ".join(evidence.engine.algorithms),
        )


def decoder_fields_are_flat(evidence: Evidence) -> Findings:
    """CFG005: decoder fields stand where the engine looks, complete and usable."""
    config = evidence.config
    if config.layout == "speculators" and not isinstance(config.raw.get(DECODER_KEY), dict):
        yield fail(
            f"{DECODER_KEY} is missing or not an object; vLLM dies with a bare AttributeError.",
            observed=type(config.raw.get(DECODER_KEY)).__name__,
            expected="an object with the decoder's fields",
        )
        return
    nested = [key for key in NESTING_KEYS if isinstance(config.decoder.get(key), dict)]
    if nested:
        yield fail(
            f"The draft config is nested under {nested[0]}. vLLM needs hidden_size, num_attention_heads, ... "
            f"directly in {config.place}; only a target's config may be nested.",
            observed=nested[0],
        )
    missing = missing_sizes(config)
    if missing:
        yield fail(
            f"{config.place} lacks usable {listed(missing)}; the shapes of the tensors follow from them.",
            observed={key: config.decoder.get(key) for key in missing},
            expected="integers above 0",
        )
    if config.draft_vocab is None and "vocab_size" not in missing:
        yield fail("draft_vocab_size is not a usable number.", observed=config.raw.get("draft_vocab_size"))


def decoder_is_supported(evidence: Evidence) -> Findings:
    """CFG006: the engine has draft code for this decoder."""
    config, engine = evidence.config, evidence.engine
    if config.family is not None or not config.is_eagle3:
        return
    if config.layout == "speculators":
        kind = plain(config.decoder.get("model_type"))
        yield fail(
            f"{engine.name} has no EAGLE-3 draft for model_type {kind}: it refuses to start.",
            observed=kind,
            expected=" or ".join(engine.speculators_decoders),
        )
    else:
        yield fail(
            f"{engine.name} has no EAGLE-3 draft architecture {plain(config.architecture) or '(none named)'}.",
            observed=config.raw.get("architectures"),
            expected=listed(engine.architectures),
        )


def norm_flags_are_explicit(evidence: Evidence) -> Findings:
    """CFG009: norm_before_residual is written, since trainer and engine assume opposite defaults.

    The other three flags default to false on both sides, so their absence is a note; so is that of the first in the
    original EAGLE layout, which knows no such flag and means what vLLM assumes there. A flag that is no boolean is an
    error: any text counts as true.
    """
    config = evidence.config
    for flag in NORM_FLAGS:
        value = config.eagle_config.get(flag, config.top.get(flag))
        assumed = evidence.engine.norm_flags_default[flag] and config.layout == "speculators"
        if value is None:
            loud = flag == "norm_before_residual" and not evidence.is_native
            yield fail(
                f"{flag} is not set; vLLM assumes {assumed} for this layout"
                + (
                    ", speculators the opposite. Write what the draft was trained with."
                    if loud
                    else ", as the trainer does."
                ),
                expected="true or false",
                severity="warning" if loud else "note",
            )
        elif not isinstance(value, bool):
            yield fail(
                f"{flag} is not true or false; vLLM takes it as {bool(value)}.", observed=value, severity="error"
            )


def one_fusion_norm(evidence: Evidence) -> Findings:
    """CFG010: norm_before_fc and fc_norm exclude each other."""
    if evidence.config.flag("norm_before_fc", False) and evidence.config.flag("fc_norm", False):
        yield fail("norm_before_fc and fc_norm cannot both be true: each normalises what the other already did.")


def not_quantised_by_accident(evidence: Evidence) -> Findings:
    """CFG011: a quantisation in the decoder config has its packed tensors in the file."""
    declared = evidence.config.decoder.get("quantization_config") or evidence.config.decoder.get("compression_config")
    if not declared:
        return
    if is_packed(evidence.config, evidence.weights):
        yield fail(
            "The draft is quantised: its names and shapes were not judged, only what does not depend on them.",
            observed=declared,
            severity="warning",
        )
        return
    method = declared.get("quant_method", "?") if isinstance(declared, dict) else declared
    yield fail(
        f"The draft config carries a quantisation ({plain(method)}), probably the target's, but its weights are plain: "
        "vLLM builds packed layers and fails, or computes garbage.",
        observed=method,
        expected="no quantization_config",
        mend=f"remove quantization_config from {evidence.config.place}",
    )
