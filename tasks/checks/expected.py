"""The tensors that one draft must and may have, computed from its config and an engine's contract."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tasks.checks.config import DraftConfig
from tasks.checks.contract import Engine, TensorRow, evaluate_shape

# Prefixes that training wrappers leave on names; the engine adds its own and then finds none.
STRAY_PREFIXES = ("model.", "module.", "_orig_mod.", "draft_model.", "drafter.")
# The original EAGLE name of the first layer, which the engine knows.
MIDLAYER, FIRST_LAYER = "midlayer.", "layers.0."


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tensor that the contract knows for this draft."""

    name: str
    shape: tuple[int, ...]
    formula: str
    required: bool
    absent: str
    need: str


def wanted_tensors(config: DraftConfig, engine: Engine, sizes: Mapping[str, int]) -> dict[str, Wanted]:
    """Return every tensor of the contract by name, required or allowed."""
    found: dict[str, Wanted] = {}
    for row in engine.rows[config.family or "llama"]:
        need = _is_needed(row, config, sizes)
        if need is None:
            continue
        for name, shape in _instances(row, sizes):
            if name not in found:
                found[name] = Wanted(name, shape, f"[{row.shape}]", need, row.absent, row.need)
    return found


def _is_needed(row: TensorRow, config: DraftConfig, sizes: Mapping[str, int]) -> bool | None:
    """Return True if required, False if allowed, None if it must not be there."""
    pruned = sizes["D"] != sizes["V"]
    decoder = config.decoder
    answers: dict[str, bool | None] = {
        "always": True,
        "allowed": False,
        # With use_aux_hidden_state off the engine drops an fc that is there.
        "aux": config.uses_aux,
        "norm_before_fc": config.flag("norm_before_fc", False) or None,
        "fc_norm": config.flag("fc_norm", False) or None,
        "attention_bias": bool(decoder.get("attention_bias")) or None,
        "mlp_bias": bool(decoder.get("mlp_bias")) or None,
        "qk_norm": True,
        "q_rank": sizes["ql"] > 0 or None,
        "no_q_rank": sizes["ql"] == 0 or None,
        "embed": sizes["T"] != sizes["H"],
        "head": pruned,
        "map": pruned or None,
    }
    return answers[row.need]


def _instances(row: TensorRow, sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if "{i}" in row.name:
        for layer in range(sizes["Ln"]):
            width = 2 * sizes["H"] if layer == 0 else sizes["H"]
            yield row.name.replace("{i}", str(layer)), evaluate_shape(row.shape, {**sizes, "X": width})
    elif "{a}" in row.name:
        for index in range(min(sizes["A"], 1024)):
            yield row.name.replace("{a}", str(index)), evaluate_shape(row.shape, sizes)
    else:
        yield row.name, evaluate_shape(row.shape, sizes)


def canonical(name: str) -> str:
    """Return a tensor's name in the layout of the contract: midlayer.* is layers.0.*."""
    return name.replace(MIDLAYER, FIRST_LAYER, 1)


def without_prefix(name: str) -> str:
    """Return a name without the prefixes that training wrappers leave."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in STRAY_PREFIXES:
            if name.startswith(prefix):
                name, stripped = name.removeprefix(prefix), True
    return name
