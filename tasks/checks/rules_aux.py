"""AUX: the layers whose hidden states feed the draft, the one link between training and serving.

Id i is the residual stream that enters layer i: 0 the embeddings, L the last layer's output before the final norm.
"""

from collections.abc import Iterator
from typing import Any

from tasks.checks.config import IDS_KEY, num_aux_as_served
from tasks.checks.evidence import Evidence
from tasks.checks.finding import Finding, fail, plain, skip

Findings = Iterator[Finding]


def guessed_ids(num_layers: int) -> tuple[int, int, int]:
    """Return the ids that vLLM takes when a draft names none."""
    return (2, num_layers // 2, num_layers - 3)


def ids_are_explicit(evidence: Evidence) -> Findings:
    """AUX001: the ids are written at the top level.

    Missing ids are an error: the engine guesses without a word, and a draft trained on other layers drafts noise.
    It is a warning where the guess is known to be right and its ids are distinct: extraction recorded exactly these,
    or it is the original EAGLE layout, which names none and is trained on these.
    """
    config = evidence.config
    if not config.uses_aux or config.nested_ids and not config.top_ids:
        return
    if config.top_ids:
        if config.ids is None:
            yield fail(f"{IDS_KEY} is not a list of integers.", observed=config.top_ids)
        return
    layers = evidence.target.num_layers if evidence.target else None
    guess = guessed_ids(layers) if layers else None
    recorded = recorded_ids(evidence)
    distinct = guess is not None and len(set(guess)) == len(guess)
    as_guessed = recorded is not None and guess is not None and sorted(recorded) == sorted(guess)
    known = distinct and (as_guessed or (recorded is None and evidence.is_native))
    yield fail(
        f"No auxiliary layer ids ({IDS_KEY}): vLLM would guess {list(guess) if guess else '[2, L//2, L-3]'}"
        + ("." if known else ", whatever the draft was trained on."),
        expected=f"{IDS_KEY}: {list(recorded) if recorded else '[the ids of the extraction]'}",
        mend=f"write the ids that the hidden states were extracted with at the top level of config.json as {IDS_KEY}",
        severity="warning" if known else None,
    )


def recorded_ids(evidence: Evidence) -> tuple[int, ...] | None:
    """Return the layer ids that extraction recorded, if they are at hand."""
    ids = evidence.training.get("layer_ids")
    return tuple(ids) if isinstance(ids, list | tuple) and all(type(one) is int for one in ids) else None


def ids_exist(evidence: Evidence) -> Findings:
    """AUX002: the ids are distinct and the target has these layers."""
    ids = evidence.config.ids
    if ids is None:
        return
    if len(set(ids)) != len(ids):
        yield fail(
            "A layer id is named twice: vLLM supplies each layer once, so the engine dies on the first request.",
            observed=list(ids),
            expected="distinct ids",
        )
    layers = evidence.target.num_layers if evidence.target else None
    top = layers if layers is not None else max(ids)
    outside = [one for one in ids if not 0 <= one <= top]
    if outside:
        bound = f"[0, {layers}]" if layers is not None else "[0, number of layers]"
        yield fail(
            f"Layer id {outside[0]} is not in {bound}: the engine would crash on the first request.",
            observed=list(ids),
            expected=bound,
        )


def fc_takes_what_is_supplied(evidence: Evidence) -> Findings:
    """AUX003: the width of fc is A*T, with A counted as the engine counts it."""
    fc, sizes = evidence.tensors.get("fc.weight"), evidence.sizes
    if fc is None or sizes is None or len(fc.shape) != 2 or not evidence.config.uses_aux:
        return
    yield from _count_differs_from_ids(evidence, sizes["A"])
    columns, width = fc.shape[1], sizes["T"]
    if columns == sizes["A"] * width:
        return
    taken = f"{columns // width} hidden states" if columns % width == 0 else f"{columns} columns"
    yield fail(
        f"fc.weight takes {taken}, but vLLM will supply {sizes['A']} of width {width}" + _why(evidence, columns, width),
        observed=f"{columns} columns",
        expected=f"{sizes['A']} x {width} = {sizes['A'] * width}",
        mend=_mend(evidence, columns, width),
    )


def _count_differs_from_ids(evidence: Evidence, counted: int) -> Findings:
    ids = evidence.config.ids
    fc, sizes = evidence.tensors["fc.weight"], evidence.sizes
    assert sizes is not None
    if ids is not None and len(set(ids)) == len(ids) and len(ids) != counted and fc.shape[1] == counted * sizes["T"]:
        yield fail(
            f"The config names {len(ids)} layer ids, but vLLM builds fc for {counted} hidden states: it loads, and the "
            "engine dies on the first request.",
            observed=list(ids),
            expected=f"{counted} ids",
        )


def _why(evidence: Evidence, columns: int, width: int) -> str:
    target = evidence.target.size("hidden_size") if evidence.target else None
    if target and target != width and columns % target == 0:
        return f". The target's width is {target}: target_hidden_size is not declared."
    ids = evidence.config.ids
    if ids and len(ids) * width == columns:
        decoder = evidence.config.family
        return f": {evidence.engine.name} does not count the {len(ids)} ids of the config for a {decoder} draft."
    return ": it refuses the weight."


def _mend(evidence: Evidence, columns: int, width: int) -> str:
    target = evidence.target.size("hidden_size") if evidence.target else None
    if target and target != width and columns % target == 0:
        return f"add target_hidden_size: {target} to the top level of config.json"
    count = mendable_count(evidence)
    if count is not None:
        return f"add num_aux_hidden_states: {count} to {evidence.config.place}"
    return ""


def mendable_count(evidence: Evidence) -> int | None:
    """Return the num_aux_hidden_states that would make the engine count the ids, or None if that is not the fault."""
    fc, sizes, ids = evidence.tensors.get("fc.weight"), evidence.sizes, evidence.config.ids
    if fc is None or sizes is None or ids is None or len(fc.shape) != 2 or len(set(ids)) != len(ids):
        return None
    fits = fc.shape[1] == len(ids) * sizes["T"] and num_aux_as_served(evidence.config, evidence.engine) != len(ids)
    return len(ids) if fits else None


def ids_are_those_of_extraction(evidence: Evidence) -> Findings:
    """AUX004: served layers are the layers that the hidden states were extracted from."""
    recorded, ids = recorded_ids(evidence), evidence.config.ids
    if recorded is None:
        yield skip("no extraction record given")
    elif ids is not None and sorted(ids) != sorted(recorded):
        yield fail(
            f"Trained on layers {list(recorded)}, but the config says {list(ids)}: acceptance would be near zero.",
            observed=list(ids),
            expected=list(recorded),
        )


def ids_are_top_level(evidence: Evidence) -> Findings:
    """AUX005: the ids do not stand only in a nested block, which the GPU runner ignores."""
    nested: Any = evidence.config.nested_ids
    if nested and not evidence.config.top_ids:
        yield fail(
            f"The layer ids stand only in a nested block ({plain(nested)}); vLLM's GPU runner ignores it and guesses.",
            observed=nested,
            mend=f"write {IDS_KEY} at the top level of config.json",
        )
