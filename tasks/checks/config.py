"""A draft's config.json as the engine reads it: which layout, where the decoder fields stand, which sizes follow.

Two layouts exist. speculators: {"speculators_config": {...}, "speculators_model_type": "eagle3",
"transformer_layer_config": {decoder fields}, "draft_vocab_size": 32000, ...}. Plain: decoder fields at the top level
beside "model_type" and "architectures". Every field may hold anything; nothing here raises for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.checks.contract import Engine, Family

Layout = Literal["speculators", "plain", "unknown"]

DECODER_KEY = "transformer_layer_config"
IDS_KEY = "eagle_aux_hidden_state_layer_ids"
# Wrappers under which multimodal configs hide a language model; a draft must not have one.
NESTING_KEYS = ("text_config", "language_model", "llm_config", "language_config", "thinker_config")
# Sizes above this are no model's; they would only make huge numbers out of a damaged config.
MAX_SIZE = 2**31
# Decoder fields without which no expectation can be computed.
REQUIRED_SIZES = {
    "H": "hidden_size",
    "I": "intermediate_size",
    "nq": "num_attention_heads",
    "Ln": "num_hidden_layers",
    "V": "vocab_size",
}
LATENT_SIZES = {"kl": "kv_lora_rank", "n": "qk_nope_head_dim", "r": "qk_rope_head_dim", "v": "v_head_dim"}
MAX_LAYERS = 64
# Head size that transformers gives a plain qwen3 config that names none (Qwen3Config, transformers 5).
QWEN3_HEAD_DIM = 128


@dataclass(frozen=True)
class DraftConfig:
    """The config, and the parts of it that the engine uses."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = "unknown"
    decoder: Mapping[str, Any] = field(default_factory=dict)
    family: Family | None = None
    architecture: str = ""

    @property
    def place(self) -> str:
        """Return where decoder fields belong, in words."""
        return DECODER_KEY if self.layout == "speculators" else "the top level of config.json"

    @property
    def is_eagle3(self) -> bool:
        """Return whether the algorithm is the one that the rules describe."""
        return self.layout == "plain" or self.raw.get("speculators_model_type") == "eagle3"

    @property
    def top(self) -> Mapping[str, Any]:
        """Return the dict that holds the EAGLE-3 fields."""
        return self.raw

    def flag(self, key: str, default: bool) -> bool:
        """Return an EAGLE-3 flag as the engine takes it: anything that is not empty counts as true."""
        if key == "norm_before_fc" and key in self.eagle_config:
            return bool(self.eagle_config[key])
        return bool(self.top.get(key, default))

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        """Return the nested eagle_config that the model code reads."""
        nested = self.decoder.get("eagle_config")
        return nested if isinstance(nested, dict) else {}

    @property
    def uses_aux(self) -> bool:
        """Return whether the draft takes hidden states of several layers through fc."""
        return bool(self.eagle_config.get("use_aux_hidden_state", True))

    @property
    def top_ids(self) -> Any:
        """Return the layer ids written where every engine path finds them, whatever they are."""
        return self.top.get(IDS_KEY)

    @property
    def nested_ids(self) -> Any:
        """Return the layer ids inside eagle_config, or inside the decoder of a speculators config."""
        inner = self.decoder.get(IDS_KEY) if self.layout == "speculators" else None
        return inner or self.eagle_config.get(IDS_KEY)

    @property
    def ids(self) -> tuple[int, ...] | None:
        """Return the layer ids that would be served, or None if there is no list of integers."""
        ids = self.top_ids or self.nested_ids
        if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
            return tuple(ids)
        return None

    def size(self, key: str) -> int | None:
        """Return a decoder field that is a usable size, or None."""
        value = self.decoder.get(key)
        return value if type(value) is int and 0 < value <= MAX_SIZE else None

    @property
    def target_vocab(self) -> int | None:
        """Return V: the vocabulary of the target as this config states it."""
        return self.size("vocab_size")

    @property
    def draft_vocab(self) -> int | None:
        """Return D: the draft's own vocabulary; absent or null means the target's."""
        value = self.top.get("draft_vocab_size")
        if value is None:
            return self.target_vocab
        return value if type(value) is int and 0 < value <= MAX_SIZE else None


def read_draft_config(raw: Mapping[str, Any] | None, engine: Engine) -> DraftConfig:
    """Return the view of a parsed config.json; an unknown layout if it is not one that the engine has."""
    if raw is None:
        return DraftConfig()
    if "speculators_config" in raw or "speculators_model_type" in raw:
        decoder = raw.get(DECODER_KEY)
        decoder = decoder if isinstance(decoder, dict) else {}
        kind = decoder.get("model_type", "llama")
        family = engine.speculators_decoders.get(kind) if isinstance(kind, str) else None
        return DraftConfig(raw, "speculators", decoder, family, f"{kind} decoder")
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if isinstance(raw.get("model_type"), str):
        return DraftConfig(raw, "plain", raw, engine.architectures.get(name), name)
    return DraftConfig(raw, "unknown", raw, None, name)


def num_aux_as_served(config: DraftConfig, engine: Engine) -> int | None:
    """Return A: how many hidden states the engine sizes fc for, or None if a key for it holds no usable number."""
    for key in engine.num_aux_keys[config.family or "llama"]:
        if key == "ids":
            found: Any = len(config.ids) if config.ids and (config.top_ids or config.decoder.get(IDS_KEY)) else None
        elif key == "eagle_config":
            nested = config.eagle_config.get(IDS_KEY)
            found = len(nested) if isinstance(nested, list) and nested else None
        else:
            found = config.decoder.get(key)
        if found is not None:
            return found if type(found) is int and 0 < found <= MAX_SIZE else None
    return engine.default_num_aux


def missing_sizes(config: DraftConfig) -> tuple[str, ...]:
    """Return the decoder fields that are absent or are no usable size."""
    wanted = {**REQUIRED_SIZES, **(LATENT_SIZES if config.family == "deepseek" else {})}
    missing = [key for key in wanted.values() if config.size(key) is None]
    optional = ("num_key_value_heads", "head_dim")
    missing += [key for key in optional if config.decoder.get(key) is not None and config.size(key) is None]
    if (config.size("num_hidden_layers") or 0) > MAX_LAYERS:
        missing.append("num_hidden_layers")
    return tuple(missing)


def sizes_of(config: DraftConfig, engine: Engine) -> dict[str, int] | None:
    """Return the letters of the contract's formulas, or None when a field for one is missing."""
    num_aux, draft_vocab = num_aux_as_served(config, engine), config.draft_vocab
    if missing_sizes(config) or num_aux is None or draft_vocab is None or config.layout == "unknown":
        return None
    wanted = {**REQUIRED_SIZES, **(LATENT_SIZES if config.family == "deepseek" else {})}
    sizes = {letter: config.size(key) or 0 for letter, key in wanted.items()}
    sizes["nkv"] = config.size("num_key_value_heads") or sizes["nq"]
    sizes["d"] = config.size("head_dim") or _default_head_dim(config, sizes)
    sizes["ql"] = config.size("q_lora_rank") or 0
    sizes["T"] = target_width(config) or sizes["H"]
    sizes["A"], sizes["D"] = num_aux, draft_vocab
    return sizes


def _default_head_dim(config: DraftConfig, sizes: Mapping[str, int]) -> int:
    if config.layout == "plain" and config.family == "qwen3":
        return QWEN3_HEAD_DIM
    return max(1, sizes["H"] // sizes["nq"])


def target_width(config: DraftConfig) -> int | None:
    """Return target_hidden_size where it is declared as a usable size, else None."""
    value = config.top.get("target_hidden_size")
    if value is None:
        value = config.decoder.get("target_hidden_size")
    return value if type(value) is int and 0 < value <= MAX_SIZE else None
