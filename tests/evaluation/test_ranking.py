import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmseg.evaluation import ranking


def test_protocol_on_a_case_done_by_hand() -> None:
    # scores 3: one anomaly; 2: an anomaly and a normal pixel tied; 1: two normal pixels
    ranked = ranking.rank(np.array([3.0, 2.0]), np.array([2.0, 1.0, 1.0]))
    assert ranked.thresholds.tolist() == [3, 2, 1]
    assert ranking.auroc(ranked) == pytest.approx((3 + 2.5) / 6)
    assert ranking.average_precision(ranked) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert ranking.fpr_at_tpr(ranked, 0.95) == pytest.approx(1 / 3)
    assert ranking.fpr_at_tpr(ranked, 0.5) == 0
    assert ranking.threshold_at_best_f1(ranked) == 2


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 40))
def test_a_group_of_unknown_order_scores_as_the_mean_over_random_orders(seed: int, p: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    above = np.array([1] * 30 + [0] * 20)
    unknown = ranking.Ranking(
        np.array([2.0, 1.0, 0.0]),
        np.array([30.0, p, 5]),
        np.array([20.0, n, 50]),
        np.array([True, False, True]),
    )
    aps, aucs = [], []
    for _ in range(100):
        inside = rng.permutation([1] * p + [0] * n)
        mask = np.concatenate([above, inside, [1] * 5, [0] * 50])
        scores = np.concatenate([np.full(50, 100.0), np.arange(p + n, 0, -1), np.zeros(55)])
        known = ranking.rank(scores[mask == 1], scores[mask == 0])
        aps.append(ranking.average_precision(known))
        aucs.append(ranking.auroc(known))
    for found, sampled in ((ranking.average_precision(unknown), aps), (ranking.auroc(unknown), aucs)):
        assert found == pytest.approx(np.mean(sampled), abs=6 * np.std(sampled) / np.sqrt(100) + 1e-3)


def test_curve_points_begin_and_end_with_the_curve() -> None:
    rng = np.random.default_rng(0)
    ranked = ranking.rank(rng.random(50) + 0.5, rng.random(1000))
    points = ranking.points(ranked, 20)
    assert points["thresholds"][0] == ranked.thresholds[0]
    assert points["tpr"][-1] == points["fpr"][-1] == 1
    assert (np.diff(points["tpr"]) >= 0).all()
    assert (np.diff(points["thresholds"]) < 0).all()
