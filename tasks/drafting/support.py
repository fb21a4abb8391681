"""Whether a draft of a target can be trained and served at all: asked before any time is spent."""

from typing import Any

from tasks.errors import RecipeError
from tasks.recipe.sections import Draft
from tasks.recipe.target import text_config

# Target architectures whose layers vLLM 0.32 can tap for EAGLE-3 (its classes that implement SupportsEagle3).
DRAFTABLE_TARGETS = frozenset(
    {
        "AfmoeForCausalLM",
        "ApertusForCausalLM",
        "Cohere2MoeForCausalLM",
        "DeepseekForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Exaone4_5_ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "InternLM3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LlavaForConditionalGeneration",
        "MiMoForCausalLM",
        "MiMoV2ForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniCPMForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MistralLarge3ForCausalLM",
        "NemotronHForCausalLM",
        "Phi3ForCausalLM",
        "PixtralForConditionalGeneration",
        "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "SarvamMLAForCausalLM",
        "TeleChat3ForCausalLM",
    }
)
# What the draft's decoder layer copies from the target.
NEEDED_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Fewer layers leave no room for three distinct default ids: 2, n // 2, n - 3.
MIN_DEFAULT_LAYERS = 8


def default_layer_ids(num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose input states feed a draft by default: near the start, the middle and the end.

    Raises RecipeError when the target has too few layers for that.
    """
    if num_layers < MIN_DEFAULT_LAYERS:
        raise RecipeError(
            f"the target has {num_layers} layers, too few for the default layers 2, n//2 and n-3; "
            "name the layers in extraction.layer_ids"
        )
    return (2, num_layers // 2, num_layers - 3)


def check_can_draft(config: dict[str, Any], draft: Draft, draft_size: int, layer_ids: tuple[int, ...]) -> None:
    """Pass a target that a draft of this kind can be trained for, by speculators, and served with, by vLLM.

    config: the target's config.json as it is, nested or not.
    Raises RecipeError: what does not fit, before any time is spent.
    """
    if draft.algorithm != "eagle3":
        raise RecipeError(f"draft.algorithm {draft.algorithm!r} is not supported; use eagle3")
    _check_architecture(config.get("architectures"))
    inner = text_config(config)
    missing = [key for key in NEEDED_KEYS if not _is_positive(inner.get(key))]
    if missing:
        raise RecipeError(f"the target's config has no positive {', '.join(missing)}; a draft cannot be shaped from it")
    _check_sizes(draft_size, inner["vocab_size"])
    _check_layers(layer_ids, inner["num_hidden_layers"])


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_architecture(architectures: object) -> None:
    named = architectures if isinstance(architectures, list) else []
    if not DRAFTABLE_TARGETS.intersection(name for name in named if isinstance(name, str)):
        raise RecipeError(
            f"the target's architecture is {', '.join(map(str, named)) or 'not named'}; vLLM 0.32 cannot serve an "
            "EAGLE-3 draft with it. Choose a target such as Llama, Qwen3, Mistral, Phi-3, gpt-oss or DeepSeek-V3."
        )


def _check_sizes(draft_size: int, vocab_size: int) -> None:
    if not 1 <= draft_size <= vocab_size:
        raise RecipeError(
            f"vocabulary.draft_size is {draft_size}; the target's vocabulary has {vocab_size} tokens. "
            f"Use at most {vocab_size}, which means: no reduced vocabulary."
        )


def _check_layers(layer_ids: tuple[int, ...], num_layers: int) -> None:
    outside = [layer for layer in layer_ids if not 0 <= layer <= num_layers]
    if outside:
        raise RecipeError(f"extraction.layer_ids holds {outside}; the target has layers 0 to {num_layers}")
    if not layer_ids or len(set(layer_ids)) != len(layer_ids):
        raise RecipeError(f"extraction.layer_ids is {list(layer_ids)}; expected distinct layers, at least one")
