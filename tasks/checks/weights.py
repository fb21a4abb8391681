"""The weight files of a draft or a target: one file, or shards named by an index.

model.safetensors.index.json: {"metadata": {...}, "weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.checks.finding import listed, plain
from tasks.checks.header import DRAFT_LIMIT_BYTES, Header, HeaderFault, Tensor, read_header
from tasks.checks.jsonfile import CONFIG_LIMIT_BYTES, read_json
from tasks.checks.source import ByteSource

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# Shards of which the headers are read; a draft has one file, the largest targets a few hundred.
MAX_SHARDS = 1000


@dataclass(frozen=True)
class WeightFiles:
    """What the weight files hold. tensors is complete only when faults and index_faults are empty."""

    files: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    has_index: bool = False
    headers: tuple[Header, ...] = ()
    faults: tuple[HeaderFault, ...] = ()
    index_faults: tuple[str, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Return whether every file could be read and agrees with the index."""
        return bool(self.headers) and not self.faults and not self.index_faults

    @property
    def num_bytes(self) -> int:
        """Return the length of all readable weight files."""
        return sum(header.file_bytes for header in self.headers)


def read_weights(source: ByteSource, header_limit: int = DRAFT_LIMIT_BYTES, index_limit: int = 0) -> WeightFiles:
    """Return the headers of all weight files that vLLM would open."""
    present = [name for name in source.names() if "/" not in name and name.endswith(".safetensors")]
    if INDEX_NAME not in source.names():
        return _opened(source, present, {}, header_limit)
    index = read_json(source, INDEX_NAME, index_limit or CONFIG_LIMIT_BYTES)
    named, faults = _weight_map(index.value, index.fault)
    if faults:
        return WeightFiles(files=tuple(present), has_index=True, index_faults=tuple(faults))
    return _opened(source, present, named, header_limit)


def _weight_map(index: dict[str, object] | None, fault: str) -> tuple[dict[str, str], list[str]]:
    if index is None:
        return {}, [fault]
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named:
        return {}, [f"{INDEX_NAME} has no weight_map"]
    strange = [file for file in named.values() if not isinstance(file, str) or not _is_plain_name(file)]
    if strange:
        return {}, [f"{INDEX_NAME} names files outside the folder: {listed(strange)}"]
    return dict(named), []


def _is_plain_name(file: str) -> bool:
    return bool(file) and "/" not in file and "\\" not in file and file not in (".", "..")


def _opened(source: ByteSource, present: list[str], named: dict[str, str], limit: int) -> WeightFiles:
    wanted = sorted(set(named.values())) if named else present
    missing = [file for file in wanted if file not in present]
    faults = [f"weight files named in the index are missing: {listed(missing)}"] if missing else []
    if len(wanted) > MAX_SHARDS:
        faults.append(f"the index names {len(wanted)} files, more than {MAX_SHARDS}")
        wanted = []
    read = [read_header(source, file, limit) for file in wanted if file in present]
    headers = tuple(header for header in read if isinstance(header, Header))
    tensors, twice = _merged(headers)
    faults += [f"{plain(name)} is stored in more than one file" for name in twice]
    if named and not missing:
        faults += _disagreements(named, headers)
    return WeightFiles(
        files=tuple(wanted),
        loose=tuple(file for file in present if named and file not in wanted),
        has_index=bool(named),
        headers=headers,
        faults=tuple(fault for fault in read if isinstance(fault, HeaderFault)),
        index_faults=tuple(faults),
        tensors=tensors,
    )


def _merged(headers: tuple[Header, ...]) -> tuple[dict[str, Tensor], list[str]]:
    tensors: dict[str, Tensor] = {}
    twice: list[str] = []
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in tensors:
                twice.append(tensor.name)
            tensors[tensor.name] = tensor
    return tensors, twice


def _disagreements(named: Mapping[str, str], headers: tuple[Header, ...]) -> list[str]:
    faults: list[str] = []
    for header in headers:
        held = {tensor.name for tensor in header.tensors}
        promised = {name for name, file in named.items() if file == header.file}
        if promised - held:
            faults.append(f"{plain(header.file)} lacks what the index promises: {listed(sorted(promised - held))}")
        if held - promised:
            faults.append(f"{plain(header.file)} holds what the index does not name: {listed(sorted(held - promised))}")
    return faults
