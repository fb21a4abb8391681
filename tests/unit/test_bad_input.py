"""Guards bad input: one message (seen, expected, what to do), exit status 2, nothing half-made."""

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import cli
from tasks.process.ports import free_port
from tests.faults.servers import localbucket

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture
def request_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Give a good recipe as a dict, with its files, and an environment without a store."""
    for name in ("DRAFTWORKS_SCRATCH", "DRAFTWORKS_S3_BUCKET", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRAFTWORKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    shutil.copytree(CASES / "_target", tmp_path / "target")
    for name in ("train", "held"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "prompt": f"What is {name}?"}) + "\n")
    return {
        "name": "bad",
        "target": {"model": str(tmp_path / "target"), "publish_as": "owner/target"},
        "prompts": {"source": "train.jsonl"},
        "extraction": {"layer_ids": [1, 2, 3]},
        "vocabulary": {"draft_size": 32},
        "benchmark": {"prompts": "held.jsonl"},
    }


def as_toml(recipe: dict[str, Any]) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in recipe.items() if not isinstance(value, dict)]
    for section, values in recipe.items():
        if isinstance(values, dict):
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def refused(recipe: dict[str, Any], folder: Path, monkeypatch: Any, capsys: Any) -> str:
    """Run `draftworks produce`; return its one message."""
    (folder / "recipe.toml").write_text(as_toml(recipe))
    monkeypatch.setattr(sys, "argv", ["draftworks", "produce", str(folder / "recipe.toml"), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    message = str(capsys.readouterr().err)
    assert message.startswith("draftworks: ")
    assert "Traceback" not in message
    return message


def test_an_unknown_key(request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    request_files["training"] = {"epoch": 3}
    assert "training.epoch" in refused(request_files, tmp_path, monkeypatch, capsys)


def test_a_missing_model_folder(request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    request_files["target"]["model"] = str(tmp_path / "nowhere")
    message = refused(request_files, tmp_path, monkeypatch, capsys)
    assert f"there is no folder {tmp_path / 'nowhere'}" in message
    assert "./infra/demo" in message


def test_a_target_that_nobody_can_draft_for(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    config["architectures"] = ["GPTNeoXForCausalLM"]
    (tmp_path / "target" / "config.json").write_text(json.dumps(config))
    assert "GPTNeoXForCausalLM" in refused(request_files, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no usable prompt"), ('{"prompt": "a"}\n{"prom\n', "1 broken lines (line 2")],
    ids=["empty", "broken line"],
)
def test_prompts_that_cannot_be_used(  # noqa: PLR0913
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any, text: str, words: str
) -> None:
    (tmp_path / "train.jsonl").write_text(text)
    assert words in refused(request_files, tmp_path, monkeypatch, capsys)


def test_measuring_on_training_prompts(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "held.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    assert "held-out prompts are among" in refused(request_files, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("python", ["/nowhere/python", sys.executable], ids=["absent", "without vllm"])
def test_an_interpreter_without_vllm(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any, python: str
) -> None:
    monkeypatch.setenv("DRAFTWORKS_VLLM_PYTHON", python)
    message = refused(request_files, tmp_path, monkeypatch, capsys)
    assert f"DRAFTWORKS_VLLM_PYTHON is {python}" in message
    assert "./infra/setup" in message


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an environment that looks like vLLM's, so that the store is the first thing that is wrong."""
    packages = tmp_path / "engine" / "lib" / "python3.11" / "site-packages"
    for name in ("vllm-0.32.0", "torch-2.13.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        text = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*name.split("-"))
        (packages / f"{name}.dist-info" / "METADATA").write_text(text)
    (tmp_path / "engine" / "bin").mkdir()
    (tmp_path / "engine" / "bin" / "python").write_text("")
    monkeypatch.setenv("DRAFTWORKS_VLLM_PYTHON", str(tmp_path / "engine" / "bin" / "python"))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Give a port on which somebody listens and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.usefixtures("engine")
def test_a_store_that_refuses(request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    message = refused(request_files, tmp_path, monkeypatch, capsys)
    assert "127.0.0.1" in message


@pytest.mark.usefixtures("engine")
def test_a_bucket_that_is_missing_is_not_made(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    with localbucket(tmp_path) as endpoint:
        monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", endpoint)
        monkeypatch.setenv("DRAFTWORKS_S3_BUCKET", "never-made")
        message = refused(request_files, tmp_path, monkeypatch, capsys)
    assert f"`aws --endpoint-url {endpoint} s3 mb s3://never-made`" in message
    assert "`draftworks up`" in message
    assert not (tmp_path / "data" / "never-made").exists()


@pytest.mark.usefixtures("engine")
def test_a_store_that_never_answers(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any, silent_port: int
) -> None:
    monkeypatch.setenv("DRAFTWORKS_S3_ENDPOINT", f"http://127.0.0.1:{silent_port}")
    assert str(silent_port) in refused(request_files, tmp_path, monkeypatch, capsys)


def test_no_store_at_all(request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    for name in ("DRAFTWORKS_S3_ENDPOINT", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    assert "draftworks up" in refused(request_files, tmp_path, monkeypatch, capsys)


def test_a_port_that_is_taken(
    request_files: dict[str, Any], tmp_path: Path, monkeypatch: Any, capsys: Any, silent_port: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["draftworks", "up", "--port", str(silent_port)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert str(silent_port) in capsys.readouterr().err
