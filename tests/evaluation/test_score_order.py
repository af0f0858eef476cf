import numpy as np
import pytest

from gmmseg.evaluation import ranking, score_counts, score_order


def counted(scores: np.ndarray, anomalous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bins = np.zeros((2, score_counts.NUM_BINS), dtype=np.int64)
    folded = np.zeros((len(score_counts.FOLDINGS), 2, score_counts.NUM_SLOTS), dtype=np.int64)
    score_counts.count_(bins, folded, scores.astype(np.float32), anomalous)
    return bins, folded


def test_scores_within_one_bin_are_told_apart_exactly() -> None:
    rng = np.random.default_rng(0)
    scores = (1000 + 1e-2 * rng.random(20_000)).astype(np.float32)
    anomalous = rng.random(len(scores)) < 0.2
    bins, folded = counted(scores, anomalous)
    assert (bins[0] > 0).sum() == 1
    ranked, bounds = score_order.ranking(bins, folded)
    expected = ranking.rank(scores[anomalous], scores[~anomalous])
    for ours, truth in zip(
        (ranked.thresholds, ranked.positives, ranked.negatives),
        (expected.thresholds, expected.positives, expected.negatives),
    ):
        np.testing.assert_allclose(ours, truth, atol=1e-9)
    assert ranked.tied.all()
    assert bounds == {"auroc": 0, "ap": 0, "fpr95": 0}


def test_no_pixel_is_lost_or_made_up_by_opening() -> None:
    rng = np.random.default_rng(1)
    scores = np.where(
        rng.random(100_000) < 0.5, 0.3 + 1e-6 * rng.standard_normal(100_000), rng.standard_normal(100_000)
    )
    anomalous = rng.random(len(scores)) < 0.2
    ranked, _ = score_order.ranking(*counted(scores, anomalous))
    assert ranked.positives.sum() == pytest.approx(anomalous.sum())
    assert ranked.negatives.sum() == pytest.approx((~anomalous).sum())
    assert (np.diff(ranked.thresholds) < 0).all()


def test_lowering_removes_an_even_background() -> None:
    truth = np.zeros((1, 64))
    truth[0, 20:30] = 100
    lowered = score_order._lowered(truth + 3, truth.sum(1))
    np.testing.assert_allclose(lowered, truth)
