"""Guards the draft vocabulary: the count, the choice (the same as speculators' own), the map, and what is refused."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.drafting.vocabulary import choose_vocabulary, count_supervised, load_map, save_map
from tasks.errors import EvidenceError, RecipeError


def columns(rows: list[tuple[list[int], list[int]]], chunk: int = 2) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    ids = pa.chunked_array(
        [pa.array([r[0] for r in rows[i : i + chunk]], pa.list_(pa.int32())) for i in range(0, len(rows), chunk)],
        type=pa.list_(pa.int32()),
    )
    return ids, pa.chunked_array([pa.array([r[1] for r in rows], pa.list_(pa.int8()))])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 1)), max_size=6), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_counts_equal_a_count_by_hand_whatever_the_chunks(rows: list[list[tuple[int, int]]], chunk: int) -> None:
    pairs = [([t for t, _ in row], [m for _, m in row]) for row in rows]
    expected = Counter(token for row in rows for token, supervised in row if supervised)
    counts = count_supervised(*columns(pairs, chunk), vocab_size=20)
    assert counts.dtype == np.int64
    assert {token: int(n) for token, n in enumerate(counts) if n} == dict(expected)


def test_a_slice_is_counted_without_its_neighbours() -> None:
    ids, mask = columns([([1, 2], [1, 1]), ([3], [1]), ([4, 4], [1, 0])])
    assert count_supervised(ids.slice(1, 1), mask.slice(1, 1), 8).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("token", [-1, 8])
def test_an_id_outside_the_vocabulary_is_named_with_its_row(token: int) -> None:
    ids, mask = columns([([1], [1]), ([], []), ([2, 3], [1, 1]), ([4, token], [1, 0])])
    with pytest.raises(EvidenceError, match=f"row 3 holds token id {token}"):
        count_supervised(ids, mask, 8)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(EvidenceError, match="differ in length"):
        count_supervised(*columns([([1, 2], [1])]), vocab_size=8)


def test_the_choice_is_that_of_speculators() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside torch, met on import
        from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    random = np.random.default_rng(0)
    for _ in range(300):
        counts = random.integers(0, random.integers(2, 5), size=random.integers(4, 40))  # few values: many ties
        counts[0] += 1
        size = int(random.integers(1, len(counts)))
        seen = {token: int(n) for token, n in enumerate(counts) if n}
        d2t, t2d = build_vocab_mappings_from_distribution(seen, size, len(counts))
        ours = choose_vocabulary(counts, size)
        assert ours is not None
        assert ours.d2t.tolist() == d2t.tolist() and ours.t2d.tolist() == t2d.tolist()
        assert ours.num_without_evidence == max(0, size - len(seen))


def test_pinned_ids_are_always_in_and_coverage_says_what_they_cost() -> None:
    vocabulary = choose_vocabulary(np.array([0, 10, 5, 4, 1, 0]), 2, pinned_ids=(5,))
    assert vocabulary is not None
    assert np.flatnonzero(vocabulary.t2d).tolist() == [1, 5]
    assert (np.arange(2) + vocabulary.d2t).tolist() == [1, 5]
    assert vocabulary.coverage == 0.5
    assert vocabulary.num_without_evidence == 1


def test_a_whole_vocabulary_has_no_map() -> None:
    assert choose_vocabulary(np.array([1, 0, 2]), 3) is None


@pytest.mark.parametrize("size", [0, -1, 4, True, 2.0])
def test_impossible_draft_sizes_are_refused(size: int) -> None:
    with pytest.raises(RecipeError, match="draft_size"):
        choose_vocabulary(np.array([1, 0, 2]), size)


@pytest.mark.parametrize(
    "counts", [np.array([0, 0]), np.array([]), np.array([[1, 2]]), np.array([1.0]), np.array([-1])]
)
def test_counts_that_are_no_counts_are_refused(counts: np.ndarray) -> None:
    with pytest.raises(EvidenceError):
        choose_vocabulary(counts, 1)


def test_pinned_ids_must_exist_and_fit() -> None:
    with pytest.raises(RecipeError, match="pinned_ids"):
        choose_vocabulary(np.array([1, 0, 2]), 2, (3,))
    with pytest.raises(RecipeError, match="do not fit"):
        choose_vocabulary(np.array([1, 0, 2]), 1, (0, 1))


def test_a_saved_map_comes_back_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    vocabulary = choose_vocabulary(np.array([3, 0, 2, 9]), 2)
    assert vocabulary is not None
    _, d2t_path = save_map(vocabulary, tmp_path)
    t2d, d2t = load_map(tmp_path)
    assert t2d.tolist() == vocabulary.t2d.tolist() and d2t.tolist() == vocabulary.d2t.tolist()
    np.save(d2t_path, np.arange(2) + d2t)  # absolute ids instead of offsets
    with pytest.raises(EvidenceError, match="different target ids"):
        load_map(tmp_path)
    with pytest.raises(EvidenceError, match="no readable vocabulary map"):
        load_map(tmp_path / "absent")
