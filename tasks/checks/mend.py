"""A mended copy of a draft, with only the mends that need no judgement.

Mended are: num_aux_hidden_states that the engine does not count by itself (AUX003), a d2t of absolute ids (VOC003),
training state, pickles and code beside the weights (FIL004, FIL005), and, where an id is given, the target's name
(CFG007, CFG008). The draft itself is never touched.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tasks.checks.config import DECODER_KEY
from tasks.checks.contract import ENGINES
from tasks.checks.epochs import choose, is_run, read_run
from tasks.checks.evidence import Evidence, gather
from tasks.checks.header import Tensor
from tasks.checks.maps import INTEGER_DTYPES
from tasks.checks.rules_aux import mendable_count
from tasks.checks.rules_vocabulary import looks_absolute
from tasks.checks.source import ByteSource, Subfolder
from tasks.checks.weights import INDEX_NAME
from tasks.errors import EvidenceError

COPY_BYTES = 8 * 2**20


def mend_draft(source: ByteSource, out: Path, *, engine: str = "vllm-0.32", publish_as: str | None = None) -> list[str]:
    """Write a mended copy of the draft to the new folder out; return what was mended, one line each.

    Raises EvidenceError: out exists and is not empty, or the draft is too broken to be copied.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise EvidenceError(
            f"cannot write the mended draft to {out}: it exists. Give a new folder; nothing is overwritten."
        )
    source = _one_draft(source)
    evidence = gather(source, "small", ENGINES[engine], None, {}, None)
    if evidence.config_file.value is None or not evidence.weights.is_sound:
        faults = [evidence.config_file.fault, *(fault.message for fault in evidence.weights.faults)]
        broken = "; ".join([fault for fault in [*faults, *evidence.weights.index_faults] if fault])
        raise EvidenceError(f"cannot mend {source.label}: {broken or 'it has no weights'}. No mend brings bytes back.")
    out.mkdir(parents=True, exist_ok=True)
    config, done = mended_config(evidence, publish_as)
    for name in evidence.weights.files:
        _copy(source, name, out / name)
    if evidence.weights.has_index:
        _copy(source, INDEX_NAME, out / INDEX_NAME)
    done += _mend_map(evidence, out)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    kept = {"config.json", INDEX_NAME, *evidence.weights.files}
    return done + [f"left out {name} ({size} bytes)" for name, size in evidence.files.items() if name not in kept]


def _one_draft(source: ByteSource) -> ByteSource:
    if not is_run(source):
        return source
    chosen = choose(read_run(source))
    return Subfolder(source, chosen.name) if chosen else source


def mended_config(evidence: Evidence, publish_as: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the config with its mechanical mends, and what they were."""
    config: dict[str, Any] = json.loads(json.dumps(evidence.config.raw))
    done: list[str] = []
    count = mendable_count(evidence)
    if count is not None:
        decoder = config[DECODER_KEY] if evidence.config.layout == "speculators" else config
        decoder["num_aux_hidden_states"] = count
        done.append(f"added num_aux_hidden_states: {count} to {evidence.config.place} (AUX003)")
    if config.pop("auto_map", None) is not None:
        done.append("removed auto_map from config.json (FIL005)")
    if publish_as is not None and evidence.config.layout == "speculators":
        before = _rename_target(config, publish_as)
        if before != publish_as:
            done.append(f"the target's name {before!r} became {publish_as!r} (CFG008)")
    return config, done


def _rename_target(config: dict[str, Any], publish_as: str) -> object:
    inner = config.get("speculators_config")
    if not isinstance(inner, dict):
        inner = config["speculators_config"] = {}
    verifier = inner.get("verifier")
    if not isinstance(verifier, dict):
        verifier = inner["verifier"] = {}
    before: object = verifier.get("name_or_path")
    verifier["name_or_path"] = publish_as
    return before


def _copy(source: ByteSource, name: str, path: Path) -> None:
    with path.open("xb") as file:
        for start in range(0, source.size(name), COPY_BYTES):
            file.write(source.read(name, start, COPY_BYTES))


def _mend_map(evidence: Evidence, out: Path) -> list[str]:
    d2t_D, tensor = evidence.maps.d2t_D, evidence.tensors.get("d2t")
    if d2t_D is None or tensor is None or evidence.sizes is None or not evidence.is_pruned:
        return []
    if not looks_absolute(d2t_D, evidence.maps.marked, evidence.sizes["V"]):
        return []
    offsets_D = d2t_D - np.arange(len(d2t_D), dtype=np.int64)
    _overwrite(out / tensor.file, tensor, offsets_D.astype(INTEGER_DTYPES[tensor.dtype]).tobytes())
    return ["d2t: absolute ids became offsets, by subtracting arange(D) (VOC003)"]


def _overwrite(path: Path, tensor: Tensor, data: bytes) -> None:
    assert len(data) == tensor.num_bytes
    with path.open("r+b") as file:
        file.seek(tensor.start)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
