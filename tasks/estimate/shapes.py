"""Parameters and bytes of a target and its draft, from the target's config alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.recipe.sections import Draft

# Weights are served, trained and stored in two bytes.
ITEM_BYTES = 2
# Two buffers per trained weight, in the weights' dtype: AdamW. Muon, the trainer's default, keeps one.
OPTIMIZER_BYTES = 4


def _attention(config: Mapping[str, Any], width: int) -> int:
    """Return the weights of an attention that reads vectors of this width."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head = int(config.get("head_dim") or hidden // heads)
    key_heads = int(config.get("num_key_value_heads") or heads)
    return width * head * (heads + 2 * key_heads) + heads * head * hidden


def _dense(config: Mapping[str, Any]) -> int:
    hidden = int(config["hidden_size"])
    return 3 * hidden * int(config.get("intermediate_size") or 4 * hidden)


def _used_per_token(config: Mapping[str, Any]) -> int:
    """Return the feed-forward weights of a layer that one token passes through."""
    experts = int(config.get("num_experts_per_tok") or 0)
    if not experts:
        return _dense(config)
    hidden = int(config["hidden_size"])
    width = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or hidden)
    return 3 * hidden * width * (experts + int(config.get("n_shared_experts") or 0))


def active_parameters(config: Mapping[str, Any]) -> int:
    """Return about how many of the target's weights one token passes through; config: its flat config."""
    hidden = int(config["hidden_size"])
    layer = _attention(config, hidden) + _used_per_token(config)
    return int(config["num_hidden_layers"]) * layer + int(config["vocab_size"]) * hidden


@dataclass(frozen=True)
class DraftShape:
    """The weights of a draft."""

    layers: int
    """Decoder layers; the first one reads the embedding beside the hidden state."""
    fusion: int
    """The projection of the target's layers onto one hidden state."""
    head: int
    frozen: int
    """The embedding, which is the target's."""
    map_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Return the size of model.safetensors."""
        return ITEM_BYTES * (self.layers + self.fusion + self.head + self.frozen) + self.map_bytes

    @property
    def epoch_bytes(self) -> int:
        """Return the size of one epoch: weights and training state."""
        return self.weight_bytes + OPTIMIZER_BYTES * (self.layers + self.fusion)

    def training_flops(self, ttt_steps: int) -> int:
        """Return the operations that one token costs in one epoch: forward and backward, the head is frozen."""
        step = 6 * self.layers + 4 * self.head
        return ttt_steps * step + 6 * self.fusion + 2 * self.head


def draft_shape(config: Mapping[str, Any], draft: Draft, num_taps: int, draft_size: int) -> DraftShape:
    """Return the shape of the draft that speculators makes for a target. num_taps: target layers that feed it."""
    hidden, vocabulary = int(config["hidden_size"]), int(config["vocab_size"])
    layers = sum(
        _attention(config, hidden if number else 2 * hidden) + _dense(config) for number in range(draft.num_layers)
    )
    has_map = draft_size < vocabulary
    return DraftShape(
        layers=layers,
        fusion=num_taps * hidden * hidden,
        head=draft_size * hidden,
        frozen=vocabulary * hidden,
        map_bytes=8 * draft_size + vocabulary if has_map else 0,
    )
