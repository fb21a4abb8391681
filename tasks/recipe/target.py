"""The target model on disk: where it lies, what its language model looks like, and what identifies it."""

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import EvidenceError, RecipeError
from tasks.recipe.fingerprint import digest
from tasks.recipe.sections import Target
from tasks.recipe.settings import Settings

# Keys under which multimodal configs keep the language model (Qwen-VL, InternVL, Kimi).
NESTED_KEYS = ("text_config", "llm_config", "language_model", "language_config", "thinker_config")
# Files whose bytes change what the target says; weights are identified by their headers.
IDENTITY_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True)
class TargetModel:
    """A target that is there: its folder, the flat config of its language model, its identity."""

    folder: Path
    published_name: str
    config: dict[str, Any]
    identity: str

    @property
    def champion_name(self) -> str:
        """Return the name under which the target's champion is kept: readable, and one per identity."""
        return champion_name(self.published_name, self.identity)

    @property
    def vocab_size(self) -> int:
        """Return the rows of the embedding, which can be more than the tokenizer has."""
        return int(self.config["vocab_size"])

    @property
    def hidden_size(self) -> int:
        """Return the width of the hidden states."""
        return int(self.config["hidden_size"])

    @property
    def num_layers(self) -> int:
        """Return the number of decoder layers."""
        return int(self.config["num_hidden_layers"])


def champion_name(published_name: str, identity: str) -> str:
    """Return the name of a target's champion pointer, such as qwen-qwen3-8b-0123456789ab."""
    readable = re.sub(r"[^a-z0-9]+", "-", published_name.lower()).strip("-")
    return f"{readable}-{identity[:12]}"


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the flat config of the language model in a possibly nested model config.

    One nested dict at a time is opened; a key that is null counts as absent.
    Raises EvidenceError when two nested language models compete.
    """
    nested = [key for key in NESTED_KEYS if isinstance(config.get(key), dict)]
    if not nested:
        return config
    if len(nested) > 1:
        raise EvidenceError(f"the config holds several language models ({', '.join(nested)}); expected one")
    return text_config(config[nested[0]])


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder. Raises EvidenceError: absent, not JSON, not an object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EvidenceError(f"{folder} has no config.json, so it is not a model folder") from error
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise EvidenceError(f"{path} holds a {type(config).__name__}; expected a JSON object")
    return config


def end_of_turn_ids(folder: Path) -> tuple[int, ...]:
    """Return the target's end-of-sequence and end-of-turn ids, sorted, from its configs."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if not path.is_file():
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        for part in (config, text_config(config)):
            ids = part.get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [ids] if isinstance(ids, int) else [])
    return tuple(sorted(found))


def _header_sha256(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise EvidenceError(f"{path} is not a safetensors file: its first 8 bytes are {start!r}")
        return hashlib.sha256(start + file.read(length)).hexdigest()


def target_identity(folder: Path) -> str:
    """Return the sha256 that identifies the target: configs, tokenizer bytes, and the headers of its weights.

    Cheap (no weight is read), and two revisions of a model differ.
    Raises EvidenceError when the folder has no safetensors weights.
    """
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise EvidenceError(f"{folder} holds no *.safetensors weights; Draftworks reads no other format")
    small = [folder / name for name in IDENTITY_FILES if (folder / name).is_file()]
    return digest(
        {
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in small},
            "weights": {path.name: [path.stat().st_size, _header_sha256(path)] for path in weights},
        }
    )


def _is_hub_id(model: str) -> bool:
    return "/" in model and not model.startswith(("/", ".", "~"))


def _published_name(target: Target, folder: Path) -> str:
    return target.publish_as or (target.model if _is_hub_id(target.model) else folder.name)


def _folder_of(target: Target, settings: Settings) -> Path:
    if _is_hub_id(target.model):
        return _from_hub(target)
    folder = Path(target.model).expanduser() if "/" in target.model else settings.targets_dir / target.model
    if folder.is_dir():
        return folder.resolve()
    raise RecipeError(
        f"target.model {target.model!r}: there is no folder {folder}. Give the path of a model folder, "
        "a folder below DRAFTWORKS_HOME/targets, or a hub id (owner/name); ./infra/demo makes smollm2-135m-instruct."
    )


def _from_hub(target: Target) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                target.model,
                revision=target.revision,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise RecipeError(
            f"target.model {target.model!r} is neither a folder nor to be had from the model hub: {error}. "
            "Check the id and revision, the network, or give the path of a local folder."
        ) from error


def resolve_target(target: Target, settings: Settings) -> TargetModel:
    """Return the target that the recipe names. Raises RecipeError or EvidenceError: absent or not a usable model."""
    folder = _folder_of(target, settings)
    config = text_config(read_config(folder))
    missing = [
        key for key in ("vocab_size", "hidden_size", "num_hidden_layers") if not isinstance(config.get(key), int)
    ]
    if missing:
        raise EvidenceError(
            f"the config of {folder} has no {', '.join(missing)} for its language model "
            f"(looked at the top level and below {', '.join(NESTED_KEYS)})"
        )
    return TargetModel(folder, _published_name(target, folder), config, target_identity(folder))
