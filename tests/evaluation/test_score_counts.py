import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gmmseg import float_order
from gmmseg.evaluation import score_counts

floats = hnp.arrays(np.float32, st.integers(2, 50), elements=st.floats(width=32, allow_nan=False))


@settings(deadline=None)
@given(floats)
def test_keys_order_like_scores_and_turn_back_into_them(scores: np.ndarray) -> None:
    keys = float_order.keys(scores)
    assert np.array_equal(
        np.sign(keys.astype(np.int64)[:, None] - keys), np.sign(np.subtract.outer(*_ranks(scores)))
    )
    assert np.array_equal(float_order.scores(keys), scores.astype(np.float64))


def _ranks(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ranks = np.unique(scores, return_inverse=True)[1]
    return ranks, ranks


def counted(scores: np.ndarray, anomalous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bins (2 bins) and folded tables (tables 2 slots) of the scores (n)."""
    bins = np.zeros((2, score_counts.NUM_BINS), dtype=np.int64)
    folded = np.zeros((len(score_counts.FOLDINGS), 2, score_counts.NUM_SLOTS), dtype=np.int64)
    score_counts.count_(bins, folded, scores, anomalous)
    return bins, folded


# Fewer pixels than a table has counters, more than that, and as many as threads are for, in several pieces.
@pytest.mark.parametrize(("size", "threads"), [(5_000, 3), (300_000, 1), ((1 << 21) + 70_001, 3)])
def test_every_pixel_is_counted_in_its_place_in_every_table(
    size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    rng = np.random.default_rng(0)
    scores = rng.standard_cauchy(size).astype(np.float32)
    anomalous = rng.random(size) < 0.3
    bins, folded = counted(scores, anomalous)
    keys = float_order.keys(scores)
    places = [keys >> score_counts.BIN_BITS, *(folding.slots(keys) for folding in score_counts.FOLDINGS)]
    for table, of_all in zip((bins, *folded), places, strict=True):
        for row, expected in zip(table, (of_all, of_all[anomalous])):
            assert np.array_equal(row, np.bincount(expected, minlength=table.shape[1]))


def test_consecutive_runs_as_many_as_a_table_has_counters_share_none() -> None:
    for folding in score_counts.FOLDINGS:
        start = np.uint32(5 << (score_counts.SLOT_BITS + folding.run_bits))
        keys = start + (np.arange(score_counts.NUM_SLOTS, dtype=np.uint32) << np.uint32(folding.run_bits))
        assert len(np.unique(folding.slots(keys))) == score_counts.NUM_SLOTS
