"""Good tiny drafts of every kind that the engine serves; none may be refused, by it or by the checks."""

from tests.cases.tiny import INTERMEDIATE, H, TinyDraft, V, bf16, draft_tensors, to_plain


def deepseek() -> TinyDraft:
    """Return a plain draft with DeepSeek's latent attention: ranks 48 and 32, heads of 32 + 32, values of 32."""
    draft = to_plain(TinyDraft())
    for name in [name for name in draft.tensors if "self_attn" in name]:
        del draft.tensors[name]
    shapes = {
        "q_a_proj": (48, 2 * H),
        "q_a_layernorm": (48,),
        "q_b_proj": (2 * 64, 48),
        "kv_a_proj_with_mqa": (32 + 32, 2 * H),
        "kv_a_layernorm": (32,),
        "kv_b_proj": (2 * 64, 32),
        "o_proj": (H, 2 * 32),
    }
    for at, (name, shape) in enumerate(shapes.items()):
        around = 1.0 if len(shape) == 1 else 0.0
        draft.tensors[f"midlayer.self_attn.{name}.weight"] = bf16(shape, 40 + at, around=around)
    ranks = {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
    draft.config |= ranks | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    draft.config["num_key_value_heads"] = 2
    return draft


def biased() -> TinyDraft:
    """Return a draft with attention and MLP biases."""
    draft = TinyDraft()
    draft.decoder.update(attention_bias=True, mlp_bias=True)
    rows = {"q": 64, "k": 32, "v": 32, "o": H}
    draft.tensors |= {f"layers.0.self_attn.{one}_proj.bias": bf16((length,), 50) for one, length in rows.items()}
    rows = {"gate": INTERMEDIATE, "up": INTERMEDIATE, "down": H}
    draft.tensors |= {f"layers.0.mlp.{one}_proj.bias": bf16((length,), 51) for one, length in rows.items()}
    return draft


def good_drafts() -> dict[str, TinyDraft]:
    """Return them by name."""
    four = TinyDraft(tensors=draft_tensors(num_aux=4))
    four.config["eagle_aux_hidden_state_layer_ids"] = [2, 3, 4, 6]
    four.decoder["num_aux_hidden_states"] = 4
    qwen = TinyDraft(tensors=draft_tensors(num_aux=4))
    qwen.config["eagle_aux_hidden_state_layer_ids"] = [2, 3, 4, 6]
    qwen.decoder["model_type"] = "qwen3"
    qwen.tensors |= {f"layers.0.self_attn.{one}_norm.weight": bf16((32,), 7, around=1.0) for one in "qk"}
    deep = TinyDraft(tensors=draft_tensors(num_layers=2))
    deep.decoder["num_hidden_layers"] = 2
    whole = TinyDraft()
    del whole.tensors["d2t"], whole.tensors["t2d"]
    whole.config["draft_vocab_size"] = V
    whole.tensors["lm_head.weight"] = bf16((V, H), 2)
    shared = TinyDraft()
    del shared.tensors["embed_tokens.weight"], shared.tensors["t2d"]
    normed = TinyDraft()
    normed.config["norm_before_fc"] = True
    normed.tensors["input_norm.weight"] = bf16((3 * H,), 8, around=1.0)
    split = TinyDraft()
    split.config["fc_norm"] = True
    split.tensors |= {f"fc_norm.{at}.weight": bf16((H,), 9, around=1.0) for at in range(3)}
    return {
        "speculators": TinyDraft(),
        "plain with midlayer": to_plain(TinyDraft()),
        "deepseek": deepseek(),
        "biased": biased(),
        "four layers declared": four,
        "qwen3 with four layers": qwen,
        "two decoder layers": deep,
        "whole vocabulary, no map": whole,
        "embedding shared, no t2d": shared,
        "norm_before_fc": normed,
        "fc_norm": split,
    }
