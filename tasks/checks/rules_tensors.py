"""TEN001 to TEN009: names, shapes and dtypes of the tensors, against what the config implies, both ways.

vLLM does not do this: it loads drafts with missing, oversized or unlisted tensors, serves right text, and only the
speed is gone.
"""

from collections.abc import Iterator

from tasks.checks.evidence import Evidence, is_packed
from tasks.checks.expected import MIDLAYER, Wanted, canonical, without_prefix
from tasks.checks.finding import Finding, fail, good, listed, plain
from tasks.checks.header import Tensor

Findings = Iterator[Finding]

SERVED_DTYPES = ("BF16", "F16", "F32")
TORCH_DTYPES = {"bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32"}
MAP_NAMES = ("d2t", "t2d")
# Beyond these shares of the target, the sizes are worth a second look.
USUAL_SHARE = (0.01, 0.20)
# Handled by rules of their own, with better words.
OWN_RULE = ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight")
OWN_NEEDS = ("norm_before_fc", "fc_norm", "attention_bias", "mlp_bias", "qk_norm")


def required_are_present(evidence: Evidence) -> Findings:
    """TEN001: every tensor that the engine uses is in the file."""
    wanted = dict(evidence.wanted or {})
    for name, one in wanted.items():
        if one.required and name not in evidence.tensors and name not in OWN_RULE and one.need not in OWN_NEEDS:
            yield fail(
                f"{name} is missing. vLLM would load this draft all the same and leave it at {one.absent}.",
                observed="absent",
                expected=f"{list(one.shape)} = {one.formula}",
            )


def no_unknown_names(evidence: Evidence) -> Findings:
    """TEN002: no tensor that the engine refuses."""
    wanted = dict(evidence.wanted or {})
    flagged = set(_present_without_flag(evidence, wanted))
    for name, tensor in evidence.tensors.items():
        if name in wanted or name in flagged or name in OWN_RULE or _is_ignored(name, evidence):
            continue
        if name == "mask_hidden":
            yield fail("mask_hidden belongs to P-EAGLE; vLLM skips it for eagle3.", severity="note")
            continue
        again = MIDLAYER in tensor.name and canonical(tensor.name) in wanted
        yield fail(
            f"{plain(tensor.name)} is the same tensor as {plain(canonical(tensor.name))}, which is there too."
            if again
            else f"{plain(name)} is not a tensor of this draft; vLLM refuses it (or reads it as another one).",
            observed=f"{plain(name)} {list(tensor.shape)}",
        )


def _is_ignored(name: str, evidence: Evidence) -> bool:
    return name.endswith(evidence.engine.ignored_endings)


def shapes_are_exact(evidence: Evidence) -> Findings:
    """TEN003: every tensor has exactly the shape that the config implies."""
    wanted = dict(evidence.wanted or {})
    for name, one in wanted.items():
        tensor = evidence.tensors.get(name)
        if tensor is None or tensor.shape == one.shape or name in ("fc.weight", *OWN_RULE):
            continue
        yield _wrong_shape(tensor, one)
    fc = evidence.tensors.get("fc.weight")
    if fc is not None and "fc.weight" in wanted and (len(fc.shape) != 2 or fc.shape[0] != wanted["fc.weight"].shape[0]):
        yield _wrong_shape(fc, wanted["fc.weight"])


def _wrong_shape(tensor: Tensor, one: Wanted) -> Finding:
    return fail(
        f"{one.name} is {list(tensor.shape)}, the config implies {list(one.shape)}. vLLM would cut it silently or "
        "refuse it; it is not the tensor that this config describes.",
        observed=list(tensor.shape),
        expected=f"{list(one.shape)} = {one.formula}",
    )


def names_are_bare(evidence: Evidence) -> Findings:
    """TEN004: names carry no prefix of a training wrapper; vLLM adds its own and then finds nothing."""
    wanted = evidence.wanted or {}
    prefixed = [
        tensor.name
        for tensor in evidence.weights.tensors.values()
        if canonical(tensor.name) not in wanted and canonical(without_prefix(tensor.name)) in wanted
    ]
    if prefixed:
        first = prefixed[0]
        prefix = first.removesuffix(without_prefix(first))
        yield fail(
            f"{len(prefixed)} tensor names carry the prefix {plain(prefix)}; vLLM finds no such module and refuses.",
            observed=listed(prefixed),
            expected=without_prefix(first),
            mend=f"save the tensors without the prefix {plain(prefix)}",
        )


def flags_match_tensors(evidence: Evidence) -> Findings:
    """TEN005: a flag in the config has its tensors in the file, and the other way round."""
    wanted = dict(evidence.wanted or {})
    for name, one in wanted.items():
        if one.required and one.need in OWN_NEEDS and name not in evidence.tensors:
            reason = "a qwen3 draft has it" if one.need == "qk_norm" else f"{one.need} is true"
            yield fail(
                f"{name} is missing although {reason}: vLLM would leave it at {one.absent}.",
                expected=f"{list(one.shape)} = {one.formula}",
            )
    for name in _present_without_flag(evidence, wanted):
        flag = _flag_of(name)
        yield fail(
            f"{plain(name)} is in the file but {flag} is false in the config: vLLM would drop it or refuse it.",
            observed=f"{plain(name)} {list(evidence.tensors[name].shape)}",
            mend=f"set {flag} as the draft was trained",
        )


def _present_without_flag(evidence: Evidence, wanted: dict[str, Wanted]) -> list[str]:
    return [name for name in evidence.tensors if name not in wanted and _flag_of(name)]


def _flag_of(name: str) -> str:
    """Return the flag that a tensor needs, or nothing."""
    if name == "input_norm.weight":
        return "norm_before_fc"
    if name.startswith("fc_norm."):
        return "fc_norm"
    if name.endswith(("q_norm.weight", "k_norm.weight")) and ".self_attn." in name:
        return "model_type qwen3"
    if name.endswith("_proj.bias"):
        return "attention_bias" if ".self_attn." in name else "mlp_bias" if ".mlp." in name else ""
    return ""


def head_fits(evidence: Evidence) -> Findings:
    """TEN006: the head has D rows, and is stored when D is not V."""
    yield from _table_fits(evidence, "lm_head.weight", "draft_vocab_size")


def embedding_fits(evidence: Evidence) -> Findings:
    """TEN007: the embedding has V rows, and is stored when the target's width is another."""
    yield from _table_fits(evidence, "embed_tokens.weight", "vocab_size")


def _table_fits(evidence: Evidence, name: str, key: str) -> Findings:
    one, tensor = (evidence.wanted or {})[name], evidence.tensors.get(name)
    if tensor is None:
        if one.required:
            yield fail(
                f"{name} is missing; vLLM would load the draft and use {one.absent}.",
                observed="absent",
                expected=f"{list(one.shape)} = {one.formula}",
            )
    elif tensor.shape != one.shape:
        rows = f"{tensor.shape[0]} rows" if tensor.shape else "no rows"
        yield fail(
            f"{name} has {rows} of {list(tensor.shape[1:])}, but {key} and hidden_size ask for {list(one.shape)}.",
            observed=list(tensor.shape),
            expected=f"{list(one.shape)} = {one.formula}",
        )


def dtypes_are_served(evidence: Evidence) -> Findings:
    """TEN008: weights are BF16, F16 or F32, all the same, and what the config says.

    A dtype that vLLM reads as plain numbers without their scales (FP8, integers) is an error. Another float dtype
    than declared, or a mixture, is a warning: vLLM casts it, at twice the size or half the precision.
    """
    found: dict[str, list[str]] = {}
    for name, tensor in evidence.tensors.items():
        if name not in MAP_NAMES:
            found.setdefault(tensor.dtype, []).append(name)
    packed = is_packed(evidence.config, evidence.weights)
    strange = {dtype: names for dtype, names in found.items() if dtype not in SERVED_DTYPES and not packed}
    for dtype, names in strange.items():
        yield fail(
            f"{listed(names)} stored as {dtype} with no scales: vLLM takes the stored numbers for the weights.",
            observed=dtype,
            expected=" / ".join(SERVED_DTYPES),
        )
    declared = declared_dtype(evidence)
    usable = {dtype: names for dtype, names in found.items() if dtype in SERVED_DTYPES}
    if declared and set(usable) - {declared}:
        other = {dtype: f"{len(names)} tensors" for dtype, names in usable.items() if dtype != declared}
        yield fail(
            f"The config says {declared}, stored are {plain(other)}; vLLM casts it.",
            observed=other,
            expected=declared,
            severity="warning",
        )
    elif len(usable) > 1:
        counts = {dtype: len(names) for dtype, names in usable.items()}
        yield fail(f"Weights of several dtypes: {plain(counts)}.", observed=counts, severity="warning")


def declared_dtype(evidence: Evidence) -> str:
    """Return the dtype that the config declares, by its safetensors name, or nothing."""
    for fields in (evidence.config.raw, evidence.config.decoder):
        for key in ("dtype", "torch_dtype"):
            value = fields.get(key)
            if isinstance(value, str) and value.removeprefix("torch.") in TORCH_DTYPES:
                return TORCH_DTYPES[value.removeprefix("torch.")]
    return ""


def size_is_plausible(evidence: Evidence) -> Findings:
    """TEN009: parameters and bytes, as a share of the target. A note: small targets have large drafts."""
    parameters, size = count_parameters(evidence), evidence.weights.num_bytes
    message = f"The draft has {parameters:,} parameters in {size:,} bytes"
    whole = evidence.target.num_bytes if evidence.target else 0
    if not whole:
        yield good(f"{message}.", observed=parameters)
        return
    share = size / whole
    if USUAL_SHARE[0] <= share <= USUAL_SHARE[1]:
        yield good(f"{message}, {share:.1%} of the target's.", observed=parameters)
    else:
        low, high = USUAL_SHARE
        yield fail(
            f"{message}, {share:.1%} of the target's.", observed=f"{share:.1%}", expected=f"{low:.0%} to {high:.0%}"
        )


def count_parameters(evidence: Evidence) -> int:
    """Return the number of stored weights, the vocabulary map not counted."""
    return sum(tensor.num_elements for name, tensor in evidence.tensors.items() if name not in MAP_NAMES)
