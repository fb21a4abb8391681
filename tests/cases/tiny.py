"""Makes tiny drafts and targets (hidden size 64) that are right, to be broken in one way at a time.

Legend: H hidden, I intermediate, V target vocabulary, D draft vocabulary, A hidden states that feed the draft.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.checks.rowcompare import to_bf16_bits

H, INTERMEDIATE, V, D, LAYERS = 64, 96, 160, 32, 6
IDS = [2, 3, 4]
ITEM = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "F8_E4M3": 1}


@dataclass
class Raw:
    """One tensor as it is stored."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def bf16(shape: tuple[int, ...], seed: int, *, around: float = 0.0) -> Raw:
    """Return a bf16 tensor of small random values around a number."""
    values = np.random.default_rng(seed).normal(around, 0.05, shape).astype(np.float32)
    return Raw("BF16", shape, to_bf16_bits(values).tobytes())


def integers(values: NDArray[Any], dtype: str = "I64") -> Raw:
    """Return an integer or boolean tensor."""
    kind = {"I64": "<i8", "I32": "<i4", "BOOL": "u1"}[dtype]
    return Raw(dtype, values.shape, values.astype(kind).tobytes())


def dump_safetensors(tensors: Mapping[str, Raw]) -> bytes:
    """Return a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, raw in tensors.items():
        header[name] = {
            "dtype": raw.dtype,
            "shape": list(raw.shape),
            "data_offsets": [position, position + len(raw.data)],
        }
        position += len(raw.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw.data for raw in tensors.values())


def target_config() -> dict[str, Any]:
    """Return the config of the tiny target."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": H,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_hidden_layers": LAYERS,
        "vocab_size": V,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }


def target_tensors() -> dict[str, Raw]:
    """Return the part of the target's weights that a draft is compared with, and enough bulk beside it."""
    return {
        "model.embed_tokens.weight": bf16((V, H), 1),
        "lm_head.weight": bf16((V, H), 2),
        "model.layers.0.mlp.bulk": bf16((4096, H), 3),
    }


def draft_ids() -> NDArray[np.int64]:
    """Return the target ids of the draft vocabulary, the end token among them."""
    return np.sort(np.concatenate(([2], np.random.default_rng(5).choice(np.arange(3, V), D - 1, replace=False))))


def draft_config() -> dict[str, Any]:
    """Return the config of a good speculators draft."""
    decoder = {key: value for key, value in target_config().items() if key not in ("architectures", "eos_token_id")}
    decoder |= {"num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": D,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(IDS),
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": True,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "owner/tiny-target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "tie_word_embeddings": False,
        "transformer_layer_config": decoder,
    }


def draft_tensors(num_aux: int = 3, num_layers: int = 1) -> dict[str, Raw]:
    """Return the tensors of a good draft; embedding and head are the tiny target's."""
    ids = draft_ids()
    theirs = target_tensors()
    head = np.frombuffer(theirs["lm_head.weight"].data, "<u2").reshape(V, H)[ids]
    marks = np.zeros(V)
    marks[ids] = 1
    tensors = {
        "d2t": integers(ids - np.arange(D)),
        "embed_tokens.weight": theirs["model.embed_tokens.weight"],
        "fc.weight": bf16((H, num_aux * H), 10),
        "layers.0.hidden_norm.weight": bf16((H,), 11, around=1.0),
        "lm_head.weight": Raw("BF16", (D, H), head.tobytes()),
        "norm.weight": bf16((H,), 12, around=1.0),
        "t2d": integers(marks, "BOOL"),
    }
    for layer in range(num_layers):
        tensors |= layer_tensors(layer)
    return tensors


def layer_tensors(layer: int) -> dict[str, Raw]:
    """Return the tensors of one decoder layer."""
    width = 2 * H if layer == 0 else H
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (64, width),
        "self_attn.k_proj": (32, width),
        "self_attn.v_proj": (32, width),
        "self_attn.o_proj": (H, 64),
        "mlp.gate_proj": (INTERMEDIATE, H),
        "mlp.up_proj": (INTERMEDIATE, H),
        "mlp.down_proj": (H, INTERMEDIATE),
    }
    made = {name: bf16(shape, 20 + at) for at, (name, shape) in enumerate(shapes.items())}
    made |= {name: bf16((H,), 30, around=1.0) for name in ("input_layernorm", "post_attention_layernorm")}
    return {f"layers.{layer}.{name}.weight": raw for name, raw in made.items()}


@dataclass
class TinyDraft:
    """A draft in memory: change config, tensors or files, then write it."""

    config: dict[str, Any] = field(default_factory=draft_config)
    tensors: dict[str, Raw] = field(default_factory=draft_tensors)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def decoder(self) -> dict[str, Any]:
        """Return the decoder part of the config."""
        found: dict[str, Any] = self.config["transformer_layer_config"]
        return found

    def write(self, folder: Path) -> Path:
        """Write config.json, model.safetensors, and the other files, which win; return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {"config.json": json.dumps(self.config).encode(), "model.safetensors": dump_safetensors(self.tensors)}
        for name, data in (files | self.files).items():
            (folder / name).write_bytes(data)
        return folder


def write_target(folder: Path) -> Path:
    """Write the tiny target; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(target_config()))
    (folder / "model.safetensors").write_bytes(dump_safetensors(target_tensors()))
    return folder


def to_plain(draft: TinyDraft) -> TinyDraft:
    """Turn a speculators draft into the plain layout of the original EAGLE."""
    keys = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    flat = dict(draft.decoder) | {
        key: draft.config[key] for key in (*keys, "eagle_aux_hidden_state_layer_ids", "dtype")
    }
    draft.config = flat | {"architectures": ["LlamaForCausalLMEagle3"]}
    draft.tensors = {name.replace("layers.0.", "midlayer."): raw for name, raw in draft.tensors.items()}
    return draft
