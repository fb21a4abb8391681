"""The command line of a vLLM server, for each mode that we use. Pure: starts nothing, touches no file.

Host and port are added when the server starts (tasks/serving/server.py), because the port is chosen then.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.process.child import Command

# The module form works with every wheel; `vllm serve` dies with the CPU wheel (it looks for a distribution "vllm").
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
# vLLM imports the connector by module name in its own environment, where Draftworks is not installed. So the folder of
# the file goes on PYTHONPATH, and nothing else does: our own site-packages there would hide vLLM's.
CONNECTOR_FOLDER = Path(__file__).resolve().parents[1] / "states"
CONNECTOR_MODULE = "connector"
CONNECTOR_CLASS = "HiddenStatesConnector"
CPU_CACHE_GIB = "2"  # VLLM_CPU_KVCACHE_SPACE: room for about 30 requests of 2k tokens of a small model

VllmArgs = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Baseline:
    """The target by itself: for generation, and as the arm without a draft."""


@dataclass(frozen=True)
class Extract:
    """The target, writing the hidden states of each prompt to a folder."""

    layer_ids: tuple[int, ...]
    """Every captured layer, in order; the number of layers, last, is the state before the final norm."""
    storage_path: Path
    """Folder of the files; only this machine's disk or a shared one with working flock."""


@dataclass(frozen=True)
class WithDraft:
    """The target with an EAGLE-3 draft."""

    path: Path
    draft_tokens: int


Mode = Baseline | Extract | WithDraft


@dataclass(frozen=True)
class ServedModel:
    """What is served, and the name that requests call it by."""

    model: str
    """Absolute path of a folder, or a hub id."""
    name: str
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def is_local(self) -> bool:
        """Return whether the model is a folder, so that nothing has to be asked of a hub."""
        return Path(self.model).is_absolute()


@dataclass(frozen=True)
class Place:
    """Where the server runs."""

    python: Path
    """Interpreter of the environment that has vLLM."""
    device: str = "auto"
    gpu_ids: str | None = None


def forwarded_arguments(vllm: VllmArgs) -> list[str]:
    """Return a recipe's vllm table as arguments, by name: True is --name, False is --no-name, else --name=value.

    False means the opposite of the flag, not its absence: leave a key out to get vLLM's default.
    """
    arguments = []
    for key, value in sorted(vllm.items()):
        name = key.lstrip("-").replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    return arguments


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _extract_arguments(mode: Extract) -> list[str]:
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(mode.layer_ids)}},
    }
    transfer = {
        "kv_connector": CONNECTOR_CLASS,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(mode.storage_path)},
    }
    return ["--speculative-config", _compact(speculative), "--kv-transfer-config", _compact(transfer)]


def _draft_arguments(mode: WithDraft) -> list[str]:
    speculative = {"method": "eagle3", "model": str(mode.path), "num_speculative_tokens": mode.draft_tokens}
    return ["--speculative-config", _compact(speculative), "--per-request-spec-decode-metrics", "summary"]


def _mode_arguments(mode: Mode) -> list[str]:
    match mode:
        case Extract():
            return _extract_arguments(mode)
        case WithDraft():
            return _draft_arguments(mode)
        case Baseline():
            return []


def _environment(served: ServedModel, mode: Mode, place: Place, inherited: Mapping[str, str]) -> dict[str, str]:
    # A key in this environment is meant for other servers: ours listen on loopback, and are asked without one.
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_API_KEY": ""}
    if served.is_local:
        env["HF_HUB_OFFLINE"] = "1"
    if place.device != "cuda" and "VLLM_CPU_KVCACHE_SPACE" not in inherited:
        env["VLLM_CPU_KVCACHE_SPACE"] = CPU_CACHE_GIB
    if place.gpu_ids is not None:
        env["CUDA_VISIBLE_DEVICES"] = place.gpu_ids
    if isinstance(mode, Extract):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CONNECTOR_FOLDER), inherited.get("PYTHONPATH", "")]))
    return env


def server_command(
    served: ServedModel,
    mode: Mode,
    place: Place,
    vllm: VllmArgs,
    inherited: Mapping[str, str] = os.environ,
) -> Command:
    """Return the command that serves the model in the given mode.

    vllm: the recipe's own arguments (forwarded_arguments). inherited: the environment that the server will inherit.
    Prefix caching is off in every mode: cached tokens have no hidden states, and they would tilt a measurement.
    """
    argv = [str(place.python), "-m", SERVER_MODULE, "--model", served.model, "--served-model-name", served.name]
    if served.revision is not None:
        argv += ["--revision", served.revision]
    if served.trust_remote_code:
        argv.append("--trust-remote-code")
    # Without its line per request the end of the log, which errors show, says what went wrong.
    argv += [
        "--disable-uvicorn-access-log",
        "--no-enable-prefix-caching",
        *_mode_arguments(mode),
        *forwarded_arguments(vllm),
    ]
    return Command(tuple(argv), _environment(served, mode, place, inherited))
