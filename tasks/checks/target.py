"""The target beside a draft: the sizes of its language model, its end tokens, and where its embedding and head lie."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.checks.finding import listed
from tasks.checks.header import FORMAT_LIMIT_BYTES, Tensor
from tasks.checks.jsonfile import INDEX_LIMIT_BYTES, read_json
from tasks.checks.source import LocalFolder
from tasks.checks.weights import WeightFiles, read_weights
from tasks.errors import EvidenceError
from tasks.recipe.target import text_config

# Parts of a name by which model families call their token embedding and their head.
EMBEDDING_WORDS = ("embed_tokens", "word_embeddings", "tok_embeddings", "embeddings", "wte", "embed_in", "embedding")
HEAD_WORDS = ("lm_head", "embed_out", "output_layer", "output.weight", "head.weight")
TOKENIZER_LIMIT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TargetFacts:
    """What a draft is compared with."""

    folder: Path
    config: Mapping[str, Any]
    architectures: tuple[str, ...]
    end_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    weights: WeightFiles = field(default_factory=WeightFiles)

    def size(self, key: str) -> int | None:
        """Return a size from the language model's config, or None."""
        value = self.config.get(key)
        return value if type(value) is int and value > 0 else None

    @property
    def num_layers(self) -> int | None:
        """Return the number of decoder layers."""
        return self.size("num_hidden_layers")

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all weights, 0 if unknown."""
        return self.weights.num_bytes


def read_target(folder: Path, *, with_weights: bool, with_tokenizer: bool) -> TargetFacts:
    """Return what is known of the target in folder; weights and tokenizer cost time, so they are asked for.

    Raises EvidenceError: no such folder, no usable config.json.
    """
    source = LocalFolder(folder)
    config = read_json(source, "config.json")
    if config.value is None:
        raise EvidenceError(f"cannot compare with the target in {folder}: {config.fault}. Give a model folder.")
    flat = text_config(config.value)
    specials = _special_tokens(source) if with_tokenizer else {}
    return TargetFacts(
        folder=folder,
        config=flat,
        architectures=_architectures(config.value) + _architectures(flat),
        end_ids=_end_ids(source, config.value, flat, specials),
        special_ids=tuple(sorted({*specials.values(), *_ids_of(flat, ("bos_token_id", "pad_token_id"))})),
        weights=_weights(source) if with_weights else WeightFiles(),
    )


def _weights(source: LocalFolder) -> WeightFiles:
    return read_weights(source, FORMAT_LIMIT_BYTES, INDEX_LIMIT_BYTES)


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _ids_of(config: Mapping[str, Any], keys: tuple[str, ...]) -> set[int]:
    found: set[int] = set()
    for key in keys:
        value = config.get(key)
        found.update(one for one in (value if isinstance(value, list) else [value]) if type(one) is int and one >= 0)
    return found


def _special_tokens(source: LocalFolder) -> dict[str, int]:
    tokenizer = read_json(source, "tokenizer.json", TOKENIZER_LIMIT_BYTES).value or {}
    added = tokenizer.get("added_tokens")
    entries = [entry for entry in added if isinstance(entry, dict)] if isinstance(added, list) else []
    return {
        str(entry.get("content")): entry["id"]
        for entry in entries
        if entry.get("special") and type(entry.get("id")) is int
    }


def _end_ids(
    source: LocalFolder, config: Mapping[str, Any], flat: Mapping[str, Any], specials: Mapping[str, int]
) -> tuple[int, ...]:
    keys = ("eos_token_id", "eot_token_id")
    generation = read_json(source, "generation_config.json").value or {}
    found = _ids_of(config, keys) | _ids_of(flat, keys) | _ids_of(generation, keys)
    tokenizer = read_json(source, "tokenizer_config.json", INDEX_LIMIT_BYTES).value or {}
    for key in ("eos_token", "eot_token"):
        token = tokenizer.get(key)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content in specials:
            found.add(specials[content])
    return tuple(sorted(found))


def find_embedding(target: TargetFacts) -> Tensor:
    """Return the target's token embedding, chosen by name and shape [vocab, hidden].

    Raises EvidenceError when none or several fit.
    """
    return _only(_tables(target, EMBEDDING_WORDS), target, "token embedding")


def find_head(target: TargetFacts) -> Tensor:
    """Return the target's output head; with tied embeddings, or without a head in the files, the embedding."""
    heads = _tables(target, HEAD_WORDS)
    return _only(heads, target, "output head") if heads else find_embedding(target)


def _tables(target: TargetFacts, words: tuple[str, ...]) -> list[Tensor]:
    shape = (target.size("vocab_size"), target.size("hidden_size"))
    return [
        tensor
        for name, tensor in target.weights.tensors.items()
        if tensor.shape == shape and any(word in name for word in words)
    ]


def _only(tables: list[Tensor], target: TargetFacts, what: str) -> Tensor:
    if len(tables) == 1:
        return tables[0]
    shape = json.dumps([target.size("vocab_size"), target.size("hidden_size")])
    seen = f"{len(tables)} fit: {listed(table.name for table in tables)}" if tables else "none fits"
    raise EvidenceError(f"cannot tell which tensor of {target.folder} is its {what}: by name and shape {shape} {seen}.")
