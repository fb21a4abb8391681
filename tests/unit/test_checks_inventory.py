"""Guards the published inventory of a Kimi-K2.5 draft: judged from S3 by at most 1 MiB of 4.6 GB, and in time.

Source of names, shapes and size: a draft written by speculators 0.3 for a target of vocabulary 163840 and width 7168.
"""

import json
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import localbucket
import pytest

from tasks.checks.draft import check_draft
from tasks.checks.source import LocalFolder, ObjectPrefix
from tasks.store.objects import ObjectStore
from tests.faults.servers import credentials, open_store

HIDDEN, INTERMEDIATE, WHOLE, REDUCED, FILE_BYTES = 7168, 18432, 163840, 32000, 4_628_369_000
OPTIMIZER_BYTES = 4_558_287_511
MIB = 2**20
LAYER = "layers.0."
SHAPES: dict[str, tuple[str, list[int]]] = {
    "d2t": ("I64", [REDUCED]),
    "embed_tokens.weight": ("BF16", [WHOLE, HIDDEN]),
    "fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN]),
    f"{LAYER}hidden_norm.weight": ("BF16", [HIDDEN]),
    f"{LAYER}input_layernorm.weight": ("BF16", [HIDDEN]),
    f"{LAYER}mlp.down_proj.weight": ("BF16", [HIDDEN, INTERMEDIATE]),
    f"{LAYER}mlp.gate_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    f"{LAYER}mlp.up_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    f"{LAYER}post_attention_layernorm.weight": ("BF16", [HIDDEN]),
    f"{LAYER}self_attn.k_proj.weight": ("BF16", [64 * 112, 2 * HIDDEN]),
    f"{LAYER}self_attn.o_proj.weight": ("BF16", [HIDDEN, 64 * 112]),
    f"{LAYER}self_attn.q_proj.weight": ("BF16", [64 * 112, 2 * HIDDEN]),
    f"{LAYER}self_attn.v_proj.weight": ("BF16", [64 * 112, 2 * HIDDEN]),
    "lm_head.weight": ("BF16", [REDUCED, HIDDEN]),
    "norm.weight": ("BF16", [HIDDEN]),
    "t2d": ("BOOL", [WHOLE]),
}
ITEM = {"I64": 8, "BF16": 2, "BOOL": 1}
CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": REDUCED,
    "eagle_aux_hidden_state_layer_ids": [2, 30, 58],
    "norm_before_residual": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": ["KimiK25ForConditionalGeneration"], "name_or_path": "moonshotai/Kimi-K2.5"},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.3.0",
    "torch_dtype": "bfloat16",
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 112,
        "num_hidden_layers": 1,
        "vocab_size": WHOLE,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 262144,
    },
}


def sparse(path: Path, size: int, start: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def write_draft(folder: Path, *, without: str = "") -> Path:
    folder.mkdir(parents=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in SHAPES.items():
        if name != without:
            size = ITEM[dtype]
            for length in shape:
                size *= length
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
            position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    room = FILE_BYTES - (WHOLE if without == "t2d" else 0) - position - 8
    assert len(text) <= room, "the published size leaves no room for this header"
    text += b" " * (room - len(text))
    sparse(folder / "model.safetensors", 8 + len(text) + position, struct.pack("<Q", len(text)) + text)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


class CountedStore:
    """An object store that counts the bytes it hands out."""

    def __init__(self, store: ObjectStore) -> None:
        """Wrap a store."""
        self.store = store
        self.num_read = 0

    def list(self, prefix: str) -> Iterable[tuple[str, int]]:
        """List."""
        return self.store.list(prefix)

    def read_range(self, key: str, start: int, length: int) -> bytearray:
        """Read and count."""
        data = self.store.read_range(key, start, length)
        self.num_read += len(data)
        return data


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[ObjectStore]:
    """A localbucket server in this process, which is told the ETag that it would else compute from 4.6 GB of zeros."""
    localbucket.S3Handler.data_root = (tmp_path / "data").resolve()
    with credentials(), ThreadingHTTPServer(("127.0.0.1", 0), localbucket.S3Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            (tmp_path / "data").mkdir()
            store = open_store(f"http://127.0.0.1:{server.server_address[1]}", "kimi")
            folder = write_draft(tmp_path.resolve() / "data" / "store-tests" / "kimi" / "good")
            localbucket.remember_etag(folder / "model.safetensors", "0" * 32)
            yield store
        finally:
            server.shutdown()
            thread.join()


def test_passes_from_s3_by_at_most_1_mib_and_prints_its_size(bucket: ObjectStore) -> None:
    counted = CountedStore(bucket)

    before = time.perf_counter()
    verdict = check_draft(ObjectPrefix(counted, "good"), level="header")
    seconds = time.perf_counter() - before

    assert verdict.outcome == "PASS", verdict.faults
    assert counted.num_read <= MIB
    assert seconds <= 1.0
    assert verdict.facts["num_bytes"] == FILE_BYTES
    assert verdict.facts["num_parameters"] == 2_313_973_760
    said = next(result.message for result in verdict.results if result.rule == "TEN009")
    assert "2,313,973,760 parameters in 4,628,369,000 bytes" in said


def test_without_t2d_it_passes_with_a_note(tmp_path: Path) -> None:
    verdict = check_draft(LocalFolder(write_draft(tmp_path / "draft", without="t2d")), level="header")

    assert verdict.outcome == "PASS", verdict.faults
    assert any("t2d is not stored" in fault.message and fault.severity == "note" for fault in verdict.faults)


def test_optimizer_state_beside_it_is_a_warning_about_dead_weight(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "draft")
    sparse(folder / "optimizer_state_dict.pt", OPTIMIZER_BYTES)

    verdict = check_draft(LocalFolder(folder), level="header")

    assert verdict.outcome == "WARN"
    loud = [fault for fault in verdict.faults if fault.severity == "warning"]
    assert [fault.rule for fault in loud] == ["FIL004"]
    assert str(OPTIMIZER_BYTES) in loud[0].message
    assert "dead weight" in loud[0].message


def test_header_level_of_a_4_6_gb_file_takes_less_than_0_3_s(tmp_path: Path) -> None:
    source = LocalFolder(write_draft(tmp_path / "draft"))

    before = time.perf_counter()
    check_draft(source, level="header")

    assert time.perf_counter() - before < 0.3
