"""Guards against crashes: whatever header and config hold, the answer is a plain verdict, never an exception."""

import copy
import json
import struct
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.checks.draft import check_draft
from tasks.checks.source import LocalFolder
from tests.cases.tiny import draft_config, draft_tensors, dump_safetensors

# Examples per test; together well below 15 s on two cores.
BOUNDED = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
GOOD = dump_safetensors(draft_tensors())
NAMES = sorted(draft_tensors())
TARGET = Path(__file__).resolve().parents[1] / "cases" / "_target"

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["llama", "eagle3", "\ud83d", "\x1b[31m", "/etc", "float64"]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def judge(tmp_path: Path, config: bytes, weights: bytes, **more: bytes) -> None:
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(weights)
    for name, data in more.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    verdict = check_draft(LocalFolder(tmp_path), target=TARGET)
    text = json.dumps(verdict.model_dump(mode="json"), allow_nan=False)
    assert text.isascii()
    assert all(result.message.isprintable() for result in verdict.results)


def keys_of(config: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    pairs = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for key, value in pairs:
        found += [(*path, key), *keys_of(value, (*path, key))]
    return found


PATHS = keys_of(draft_config())


@BOUNDED
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), anything), min_size=1, max_size=4))
def test_any_value_in_any_config_field_gives_a_verdict(tmp_path: Path, changes: list[tuple[Any, Any]]) -> None:
    config: Any = copy.deepcopy(draft_config())
    for path, value in changes:
        place = config
        for key in path[:-1]:
            place = place[key] if isinstance(place, dict) and key in place else None
        if isinstance(place, dict):
            place[path[-1]] = value
    judge(tmp_path, json.dumps(config).encode(), GOOD)


@BOUNDED
@given(config=st.dictionaries(st.sampled_from([path[-1] for path in PATHS if isinstance(path[-1], str)]), anything))
def test_any_flat_config_gives_a_verdict(tmp_path: Path, config: dict[str, Any]) -> None:
    judge(tmp_path, json.dumps(config | {"model_type": "llama"}).encode(), GOOD)


@BOUNDED
@given(config=st.binary(max_size=64), state=st.binary(max_size=32), metrics=anything)
def test_any_bytes_in_the_json_files_give_a_verdict(tmp_path: Path, config: bytes, state: bytes, metrics: Any) -> None:
    judge(tmp_path, config, GOOD, training_state=state, val_metrics=json.dumps(metrics).encode())


@BOUNDED
@given(weights=st.binary(max_size=200))
def test_any_bytes_in_the_weight_file_give_a_verdict(tmp_path: Path, weights: bytes) -> None:
    judge(tmp_path, json.dumps(draft_config()).encode(), weights)


@BOUNDED
@given(
    header=st.dictionaries(st.text(max_size=5) | st.sampled_from(NAMES), anything, max_size=5),
    data=st.binary(max_size=32),
)
def test_any_json_header_gives_a_verdict(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    judge(tmp_path, json.dumps(draft_config()).encode(), struct.pack("<Q", len(text)) + text + data)


@BOUNDED
@given(edits=st.lists(st.tuples(st.integers(0, 2100), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_in_a_good_file_give_a_verdict(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    weights = bytearray(GOOD)
    for at, value in edits:
        weights[at] = value
    judge(tmp_path, json.dumps(draft_config()).encode(), bytes(weights))
