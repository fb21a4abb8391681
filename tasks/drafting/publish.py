"""A draft as it is stored and served: config.json and model.safetensors, nothing of the machine that trained it."""

import copy
import json
import shutil
from pathlib import Path, PureWindowsPath
from typing import Any

from tasks.drafting.epochs import WEIGHTS_NAME
from tasks.errors import EvidenceError, RecipeError

CONFIG_NAME = "config.json"
# All that a draft needs in order to be served.
SERVED_FILES = (CONFIG_NAME, WEIGHTS_NAME)
# vLLM and speculators disagree on the default of some of these, so that a served draft states all of them.
NORM_FLAGS = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
# The number of auxiliary layers that vLLM 0.32 assumes when the decoder's config does not state one.
ASSUMED_AUX_LAYERS = 3


def clean_config(config: dict[str, Any], target_name: str) -> dict[str, Any]:
    """Return a trained draft's config as it should be served with a target called target_name.

    Norm flags that the trainer left out get its defaults; its code file is no longer referred to.
    Raises RecipeError: a target name that is empty or a path; EvidenceError: not the config of a draft.
    """
    _require_published_name(target_name)
    cleaned = copy.deepcopy(config)
    cleaned.pop("auto_map", None)
    try:
        cleaned["speculators_config"]["verifier"]["name_or_path"] = target_name
        layer_ids, decoder = cleaned["eagle_aux_hidden_state_layer_ids"], cleaned["transformer_layer_config"]
        num_aux = len(layer_ids)
    except (KeyError, TypeError) as error:
        raise EvidenceError(f"{CONFIG_NAME} is not that of a trained EAGLE-3 draft: {error!r}") from error
    if num_aux != ASSUMED_AUX_LAYERS:
        decoder["num_aux_hidden_states"] = num_aux
    return {**NORM_FLAGS, **cleaned}


def _require_published_name(name: str) -> None:
    is_path = name.startswith(("/", ".", "~")) or PureWindowsPath(name).drive or "\\" in name or ":" in name
    if not name.strip() or is_path:
        raise RecipeError(
            f"a draft cannot be published for the target {name!r}: that is a place on one machine. "
            "Set target.publish_as to a model id such as owner/name."
        )


def write_draft_folder(epoch: Path, destination: Path, target_name: str) -> tuple[Path, Path]:
    """Write the draft of a trained epoch into destination and return its config and weights.

    Raises EvidenceError when the epoch has no readable config or no weights.
    """
    try:
        config = json.loads((epoch / CONFIG_NAME).read_text(encoding="utf-8"))
        text = json.dumps(clean_config(config, target_name), indent=2, sort_keys=True) + "\n"
        destination.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(epoch / WEIGHTS_NAME, destination / WEIGHTS_NAME)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"cannot publish the epoch in {epoch}: {error}") from error
    (destination / CONFIG_NAME).write_text(text, encoding="utf-8")
    return destination / CONFIG_NAME, destination / WEIGHTS_NAME
