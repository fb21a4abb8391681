"""What an engine expects of an EAGLE-3 draft, as data: names, shapes as formulas, and what happens when one is absent.

The letters of a formula: H hidden size, T hidden size of the target, A hidden states that the engine supplies,
I intermediate size, nq and nkv attention heads, d head size, V target vocabulary, D draft vocabulary, X width of a
layer's input (2H in layer 0, H above). DeepSeek: ql and kl ranks, n and r the two parts of a query head, v value head.

To add an engine version: write its Engine below, add it to ENGINES, and run tests/pipeline/test_contract_vllm.py
with that version installed; it asks the engine whether the table is true.
Source for vllm-0.32: vllm/model_executor/models/{llama,qwen3,deepseek}_eagle3.py and registry.py of vLLM 0.32.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tasks.checks.targets_vllm_0_32 import EAGLE3_TARGETS, OTHER_MODELS

Family = Literal["llama", "qwen3", "deepseek"]
# When a tensor belongs in the file. "allowed" may be there or not.
Need = Literal[
    "always",
    "allowed",
    "aux",
    "norm_before_fc",
    "fc_norm",
    "attention_bias",
    "mlp_bias",
    "qk_norm",
    "q_rank",
    "no_q_rank",
    "embed",
    "head",
    "map",
]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One line of the table; {i} in the name is a layer, {a} a supplied hidden state."""

    name: str
    shape: str
    need: Need = "always"
    absent: str = "uninitialised memory"


@dataclass(frozen=True)
class Engine:
    """One engine version's contract."""

    name: str
    version: str
    algorithms: tuple[str, ...]
    # Architecture that a speculators checkpoint gets, by the model_type of its decoder.
    speculators_decoders: Mapping[str, Family]
    # Architecture names of the plain layout, and the code that they run.
    architectures: Mapping[str, Family]
    rows: Mapping[Family, tuple[TensorRow, ...]]
    # Config keys that say how many hidden states fc takes, first found wins; "ids" is the length of the id list.
    num_aux_keys: Mapping[Family, tuple[str, ...]]
    targets: frozenset[str]
    other_models: frozenset[str]
    default_num_aux: int = 3
    norm_flags_default: Mapping[str, bool] = field(default_factory=dict)
    # Names with these endings are read over without a word.
    ignored_endings: tuple[str, ...] = ()


_ONES = "all ones"
_LAYER = "layers.{i}."
_MLP = (
    TensorRow(_LAYER + "mlp.gate_proj.weight", "I, H"),
    TensorRow(_LAYER + "mlp.up_proj.weight", "I, H"),
    TensorRow(_LAYER + "mlp.down_proj.weight", "H, I"),
    TensorRow(_LAYER + "mlp.gate_proj.bias", "I", "mlp_bias"),
    TensorRow(_LAYER + "mlp.up_proj.bias", "I", "mlp_bias"),
    TensorRow(_LAYER + "mlp.down_proj.bias", "H", "mlp_bias"),
)
_NORMS = (
    TensorRow("layers.0.hidden_norm.weight", "H", absent=_ONES),
    TensorRow(_LAYER + "hidden_norm.weight", "H", "allowed", absent=_ONES),
    TensorRow(_LAYER + "input_layernorm.weight", "H", absent=_ONES),
    TensorRow(_LAYER + "post_attention_layernorm.weight", "H", absent=_ONES),
    TensorRow("norm.weight", "H", absent=_ONES),
)
_HEADS = (
    TensorRow(_LAYER + "self_attn.q_proj.weight", "nq*d, X"),
    TensorRow(_LAYER + "self_attn.k_proj.weight", "nkv*d, X"),
    TensorRow(_LAYER + "self_attn.v_proj.weight", "nkv*d, X"),
    TensorRow(_LAYER + "self_attn.o_proj.weight", "H, nq*d"),
    TensorRow(_LAYER + "self_attn.q_proj.bias", "nq*d", "attention_bias"),
    TensorRow(_LAYER + "self_attn.k_proj.bias", "nkv*d", "attention_bias"),
    TensorRow(_LAYER + "self_attn.v_proj.bias", "nkv*d", "attention_bias"),
)
_LATENT = (
    TensorRow(_LAYER + "self_attn.q_proj.weight", "nq*n+nq*r, X", "no_q_rank"),
    TensorRow(_LAYER + "self_attn.q_a_proj.weight", "ql, X", "q_rank"),
    TensorRow(_LAYER + "self_attn.q_a_layernorm.weight", "ql", "q_rank", absent=_ONES),
    TensorRow(_LAYER + "self_attn.q_b_proj.weight", "nq*n+nq*r, ql", "q_rank"),
    TensorRow(_LAYER + "self_attn.kv_a_proj_with_mqa.weight", "kl+r, X"),
    TensorRow(_LAYER + "self_attn.kv_a_layernorm.weight", "kl", absent=_ONES),
    TensorRow(_LAYER + "self_attn.kv_b_proj.weight", "nq*n+nq*v, kl"),
    TensorRow(_LAYER + "self_attn.o_proj.weight", "H, nq*v"),
)
_FUSION = (
    TensorRow("fc.weight", "H, T*A", "aux"),
    TensorRow("input_norm.weight", "T*A", "norm_before_fc", absent=_ONES),
    TensorRow("fc_norm.{a}.weight", "T", "fc_norm", absent=_ONES),
)
_VOCABULARY = (
    TensorRow("lm_head.weight", "D, H", "head", absent="the target's head, cut to its first D rows"),
    TensorRow("embed_tokens.weight", "V, H", "embed"),
    TensorRow("d2t", "D", "map", absent="all zeros, so that draft token i means target token i"),
    TensorRow("t2d", "V", "allowed"),
)
_QK_NORMS = (
    TensorRow(_LAYER + "self_attn.q_norm.weight", "d", "qk_norm", absent=_ONES),
    TensorRow(_LAYER + "self_attn.k_norm.weight", "d", "qk_norm", absent=_ONES),
)
_LLAMA_BIAS = (TensorRow(_LAYER + "self_attn.o_proj.bias", "H", "attention_bias"),)
_LLAMA_COUNT = ("num_aux_hidden_states", "eagle_config")

VLLM_0_32 = Engine(
    name="vllm-0.32",
    version="0.32",
    algorithms=("eagle3", "peagle", "dflash", "dflash2", "dspark"),
    speculators_decoders={"llama": "llama", "qwen3": "qwen3"},
    architectures={
        "LlamaForCausalLM": "llama",
        "Eagle3LlamaForCausalLM": "llama",
        "LlamaForCausalLMEagle3": "llama",
        "Eagle3MiniMaxM2ForCausalLM": "llama",
        "MiniMaxM2ForCausalLM": "llama",
        "Eagle3Qwen2_5vlForCausalLM": "llama",
        "Eagle3Qwen3vlForCausalLM": "llama",
        "Qwen3ForCausalLM": "qwen3",
        "Eagle3Qwen3ForCausalLM": "qwen3",
        "DeepseekV2ForCausalLM": "deepseek",
        "DeepseekV3ForCausalLM": "deepseek",
        "Eagle3DeepseekV2ForCausalLM": "deepseek",
        "Eagle3DeepseekV3ForCausalLM": "deepseek",
    },
    rows={
        "llama": _FUSION + _HEADS + _LLAMA_BIAS + _MLP + _NORMS + _VOCABULARY,
        "qwen3": _FUSION + _HEADS + _QK_NORMS + _MLP[:3] + _NORMS + _VOCABULARY,
        "deepseek": _FUSION[:1] + _FUSION[2:] + _LATENT + _MLP[:3] + _NORMS + _VOCABULARY,
    },
    num_aux_keys={
        "llama": _LLAMA_COUNT,
        "deepseek": _LLAMA_COUNT,
        "qwen3": ("num_aux_layers", "num_aux_hidden_states", "ids", "eagle_config"),
    },
    targets=EAGLE3_TARGETS,
    other_models=OTHER_MODELS,
    norm_flags_default={"norm_before_residual": True, "norm_before_fc": False, "fc_norm": False, "norm_output": False},
    ignored_endings=(".bias", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
)

ENGINES: Mapping[str, Engine] = {VLLM_0_32.name: VLLM_0_32}


def evaluate(formula: str, sizes: Mapping[str, int]) -> int:
    """Return the value of one dimension: products of sizes, and sums of them."""
    total = 0
    for term in formula.replace(" ", "").split("+"):
        product = 1
        for factor in term.split("*"):
            product *= sizes[factor]
        total += product
    return total


def evaluate_shape(formula: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape from its formula: evaluate_shape("H, T*A", {"H": 64, "T": 64, "A": 3}) is (64, 192)."""
    return tuple(evaluate(part, sizes) for part in formula.split(","))
