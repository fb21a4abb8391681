"""Guards the whole command line of each server mode, and what stands beside the connector on the server's path."""

import json
import sys
from pathlib import Path

import pytest

from tasks.serving.command import (
    CONNECTOR_FOLDER,
    CONNECTOR_MODULE,
    Baseline,
    Extract,
    Mode,
    Place,
    ServedModel,
    WithDraft,
    forwarded_arguments,
    server_command,
)

PYTHON = ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
SERVED = ServedModel("/models/target", "target")
COMMON = (
    *PYTHON,
    *("--model", "/models/target", "--served-model-name", "target"),
    *("--disable-uvicorn-access-log", "--no-enable-prefix-caching"),
)
PLACE = Place(Path("/v/bin/python"))
EXTRACT = Extract((2, 15, 27, 30), Path("/scratch/hs"))
EXTRACT_SPEC = (
    '{"method":"extract_hidden_states","num_speculative_tokens":1,'
    '"draft_model_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[2,15,27,30]}}}'
)
EXTRACT_TRANSFER = (
    '{"kv_connector":"HiddenStatesConnector","kv_connector_module_path":"connector","kv_role":"kv_producer",'
    '"kv_connector_extra_config":{"shared_storage_path":"/scratch/hs"}}'
)


@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        (Baseline(), ()),
        (EXTRACT, ("--speculative-config", EXTRACT_SPEC, "--kv-transfer-config", EXTRACT_TRANSFER)),
        (
            WithDraft(Path("/drafts/d"), 3),
            (
                "--speculative-config",
                '{"method":"eagle3","model":"/drafts/d","num_speculative_tokens":3}',
                "--per-request-spec-decode-metrics",
                "summary",
            ),
        ),
    ],
)
def test_each_mode_has_its_command_line(mode: Mode, arguments: tuple[str, ...]) -> None:
    assert server_command(SERVED, mode, PLACE, {}, {}).argv == (*COMMON, *arguments)


def test_hub_model_revision_and_remote_code_are_passed_on() -> None:
    served = ServedModel("owner/name", "target", revision="abc", trust_remote_code=True)
    command = server_command(served, Baseline(), Place(Path("/v/bin/python"), "cuda", "1,2"), {}, {})
    assert command.argv == (
        *PYTHON,
        *("--model", "owner/name", "--served-model-name", "target", "--revision", "abc", "--trust-remote-code"),
        *("--disable-uvicorn-access-log", "--no-enable-prefix-caching"),
    )
    assert command.env == {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_API_KEY": "",
        "CUDA_VISIBLE_DEVICES": "1,2",
    }


def test_a_local_model_on_a_cpu_is_offline_and_has_room_for_its_cache() -> None:
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_API_KEY": "", "HF_HUB_OFFLINE": "1"}
    assert server_command(SERVED, Baseline(), PLACE, {}, {}).env == {**quiet, "VLLM_CPU_KVCACHE_SPACE": "2"}
    assert server_command(SERVED, Baseline(), PLACE, {}, {"VLLM_CPU_KVCACHE_SPACE": "8"}).env == quiet


def test_extraction_finds_the_connector_and_keeps_an_inherited_path() -> None:
    assert server_command(SERVED, EXTRACT, PLACE, {}, {}).env["PYTHONPATH"] == str(CONNECTOR_FOLDER)
    inherited = {"PYTHONPATH": "/mine"}
    assert server_command(SERVED, EXTRACT, PLACE, {}, inherited).env["PYTHONPATH"] == f"{CONNECTOR_FOLDER}:/mine"
    assert (CONNECTOR_FOLDER / f"{CONNECTOR_MODULE}.py").is_file()


def test_the_vllm_table_is_forwarded_by_name_in_a_stable_order() -> None:
    table = {"max_model_len": 512, "enforce-eager": True, "async_scheduling": False, "dtype": "bfloat16", "x": -1.5}
    assert forwarded_arguments(table) == [
        *("--no-async-scheduling", "--dtype=bfloat16", "--enforce-eager", "--max-model-len=512", "--x=-1.5"),
    ]
    value = json.dumps({"a": 1})
    assert forwarded_arguments({"compilation_config": value}) == [f"--compilation-config={value}"]


def test_no_file_beside_the_connector_hides_a_module_that_vllm_imports() -> None:
    # The folder comes first on the server's path, before the standard library and vLLM's packages.
    beside = {path.stem for path in CONNECTOR_FOLDER.glob("*.py")} - {"__init__"}
    assert not beside & sys.stdlib_module_names
    vllm_env = Path(__file__).parents[2] / ".venv-vllm"
    installed = {path.name.removesuffix(".py") for path in vllm_env.glob("lib/python3*/site-packages/*")}
    assert not beside & installed
