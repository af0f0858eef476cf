import numpy as np
import pytest

from gmmseg.evaluation import intervals


@pytest.mark.parametrize("count", [0, 1, 7, intervals.ATOMS, intervals.ATOMS + 1, 100_000])
def test_a_summary_keeps_the_number_and_the_order_of_pixels(count: int) -> None:
    scores = np.random.default_rng(0).standard_normal(count)
    values, weights = intervals.summary(scores)
    used = weights > 0
    assert weights.sum() == count
    assert (np.diff(values[used]) <= 0).all()
    if 0 < count <= intervals.ATOMS:
        assert np.array_equal(values[used], np.sort(scores)[::-1])
    if count > intervals.ATOMS:
        assert np.array_equal(values[:3], np.sort(scores)[::-1][:3])  # the top is kept pixel by pixel


def test_a_draw_without_anomalies_is_drawn_again() -> None:
    rare = np.zeros((6, 4, intervals.ATOMS))
    rare[:, 3, 0] = 10  # six images with ten normal pixels of score 0
    rare[0, :2, 0] = 1, 5  # one of them with five anomalous pixels of score 1
    found = intervals.bootstrap(rare, replicates=50, level=0.9, seed=0)
    assert found == {"auroc": (1, 1), "ap": (1, 1), "fpr95": (0, 0)}


@pytest.mark.parametrize(
    "scale", [1.0, 1e-4, 0.0, np.inf], ids=["spread", "crowded", "constant", "with infinities"]
)
def test_scores_at_ranks_are_those_of_a_sorted_array(scale: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=200_000).astype(np.float32)
    if np.isinf(scale):
        scores[:7], scores[7:9] = np.inf, -np.inf
    else:
        scores = (1 + scale * scores).astype(np.float32)
    ranks = np.unique(np.concatenate([[0, 199_999], rng.integers(0, 200_000, size=300)]))
    np.testing.assert_array_equal(intervals.at_ranks(scores, ranks), np.sort(scores)[::-1][ranks])
