"""Everything the rules look at, gathered once from a draft and frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.checks.config import DraftConfig, read_draft_config, sizes_of
from tasks.checks.contract import Engine
from tasks.checks.epochs import Run
from tasks.checks.expected import MIDLAYER, Wanted, canonical, wanted_tensors, without_prefix
from tasks.checks.header import Tensor
from tasks.checks.jsonfile import JsonFile, read_json
from tasks.checks.maps import Maps, read_maps
from tasks.checks.rowcompare import FLOATS, RowCompare
from tasks.checks.scan import ScanResult, scan_files, scan_vectors
from tasks.checks.source import ByteSource, LocalFolder
from tasks.checks.target import TargetFacts, find_embedding, find_head, read_target
from tasks.checks.verdict import LEVELS, Level
from tasks.checks.weights import WeightFiles, read_weights
from tasks.errors import EvidenceError

# Norms are read at the small level; the widest is T*A elements, far below this.
VECTOR_LIMIT_BYTES = 2**20
# Names that quantisation formats give to what a packed weight needs.
PACKED_WORDS = ("weight_packed", "weight_scale", "qweight", "qzeros", "scales", "weight_shape")


@dataclass(frozen=True)
class Evidence:
    """What is known about one draft at one level."""

    level: Level
    engine: Engine
    label: str
    files: Mapping[str, int]
    config_file: JsonFile
    config: DraftConfig
    sizes: Mapping[str, int] | None
    weights: WeightFiles
    tensors: Mapping[str, Tensor]
    wanted: Mapping[str, Wanted] | None
    training_state: JsonFile
    metrics: JsonFile
    target: TargetFacts | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    run: Run | None = None
    maps: Maps = field(default_factory=Maps)
    scan: ScanResult = field(default_factory=ScanResult)
    no_rows: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the last part of where the draft lies: the epoch's number in a run folder."""
        return self.label.rstrip("/").rsplit("/", 1)[-1]

    @property
    def is_native(self) -> bool:
        """Return whether this is the original EAGLE layout, known by its name for the first layer."""
        named = any(MIDLAYER in name for name in self.weights.tensors)
        return self.config.layout == "plain" and (named or self.config.architecture == "LlamaForCausalLMEagle3")

    @property
    def is_pruned(self) -> bool:
        """Return whether the draft vocabulary is smaller than the target's, as far as the config says."""
        return self.sizes is not None and self.sizes["D"] != self.sizes["V"]


def is_packed(config: DraftConfig, weights: WeightFiles) -> bool:
    """Return whether the draft is quantised as its config declares, so that plain names and shapes do not apply."""
    declared = config.decoder.get("quantization_config") or config.decoder.get("compression_config")
    return bool(declared) and any(word in name for name in weights.tensors for word in PACKED_WORDS)


def gather(
    source: ByteSource, level: Level, engine: Engine, target: Path | None, training: Mapping[str, Any], run: Run | None
) -> Evidence:
    """Return the evidence about the draft in source, read as deep as the level says.

    Raises EvidenceError: the source or the target cannot be read at all.
    """
    deep = LEVELS.index(level)
    config_file = read_json(source, "config.json")
    config = read_draft_config(config_file.value, engine)
    sizes = sizes_of(config, engine)
    weights = read_weights(source)
    judged = sizes is not None and config.is_eagle3 and not is_packed(config, weights)
    wanted = wanted_tensors(config, engine, sizes) if judged and sizes is not None else None
    names = _names(weights, wanted)
    tensors = {names[name]: tensor for name, tensor in weights.tensors.items()}
    facts = read_target(target, with_weights=deep == 2, with_tokenizer=deep > 0) if target is not None else None
    maps = read_maps(source, tensors) if deep and weights.is_sound else Maps()
    compares, no_rows = _comparisons(facts, tensors, maps) if deep == 2 else ({}, {})
    return Evidence(
        level=level,
        engine=engine,
        label=source.label,
        files={name: source.size(name) for name in source.names() if "/" not in name},
        config_file=config_file,
        config=config,
        sizes=sizes,
        weights=weights,
        tensors=tensors,
        wanted=wanted,
        training_state=read_json(source, "training_state.json"),
        metrics=read_json(source, "val_metrics.json"),
        target=facts,
        training=training,
        run=run,
        maps=maps,
        scan=_scan(source, deep, weights, tensors, names, compares),
        no_rows=no_rows,
    )


def _names(weights: WeightFiles, wanted: Mapping[str, Wanted] | None) -> dict[str, str]:
    """Return the contract's name for each stored name; a stray prefix is seen through, to be one fault and not 30."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in weights.tensors:
        known = canonical(name)
        if wanted is not None and known not in wanted and canonical(without_prefix(name)) in wanted:
            known = canonical(without_prefix(name))
        names[name] = known if known not in taken else name
        taken.add(names[name])
    return names


def _scan(
    source: ByteSource,
    deep: int,
    weights: WeightFiles,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    compares: Mapping[str, RowCompare],
) -> ScanResult:
    if not deep or not weights.is_sound:
        return ScanResult()
    if deep == 1:
        return scan_vectors(source, tensors, VECTOR_LIMIT_BYTES)
    return scan_files(source, weights.headers, names, compares)


def _comparisons(
    target: TargetFacts | None, tensors: Mapping[str, Tensor], maps: Maps
) -> tuple[dict[str, RowCompare], dict[str, str]]:
    """Return the row comparisons that are possible, and for the others why not."""
    compares: dict[str, RowCompare] = {}
    reasons: dict[str, str] = {}
    if target is None:
        return {}, {}
    folder = LocalFolder(target.folder)
    for name, find in (("embed_tokens.weight", find_embedding), ("lm_head.weight", find_head)):
        if name not in tensors:
            continue
        try:
            table = find(target)
        except EvidenceError as error:
            reasons[name] = str(error)
            continue
        reason = _mismatch(tensors[name], table, maps if name == "lm_head.weight" else None)
        if reason:
            reasons[name] = reason
        else:
            rows = maps.ids_D if name == "lm_head.weight" else None
            compares[name] = RowCompare(folder, table, rows)
    return compares, reasons


def _mismatch(mine: Tensor, table: Tensor, maps: Maps | None) -> str:
    if mine.dtype not in FLOATS or table.dtype not in FLOATS:
        return f"{mine.dtype} and {table.dtype} cannot be compared"
    if len(mine.shape) != 2 or mine.shape[1] != table.shape[1]:
        return f"the target's table is {list(table.shape)}, the draft's {list(mine.shape)}"
    ids = maps.ids_D if maps is not None else None
    if ids is None:
        return "" if mine.shape == table.shape else f"{mine.shape[0]} rows and no map to the target's {table.shape[0]}"
    if len(ids) != mine.shape[0]:
        return f"the map has {len(ids)} entries for {mine.shape[0]} rows"
    return "" if not len(ids) or (ids.min() >= 0 and ids.max() < table.shape[0]) else "the map leaves the vocabulary"
