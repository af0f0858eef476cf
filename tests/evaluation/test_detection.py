from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from gmmseg.evaluation import AnomalyCurve, EvaluationError, detection
from gmmseg.labels import IGNORE

FIGURES = ("auroc", "ap", "fpr95")


def exact(scores: np.ndarray, mask: np.ndarray) -> tuple[float, float, float]:
    """scikit-learn's figures; its infinities are replaced by finite scores of the same order."""
    ranks = np.unique(scores, return_inverse=True)[1]
    fpr, tpr, _ = roc_curve(mask, ranks, drop_intermediate=False)
    return (
        roc_auc_score(mask, ranks),
        average_precision_score(mask, ranks),
        float(fpr[np.argmax(tpr >= 0.95)]),
    )


def seen(scores: np.ndarray, mask: np.ndarray, **options: bool) -> AnomalyCurve:
    curve = AnomalyCurve(**options)
    curve.update(scores, mask)
    return curve


@pytest.fixture
def keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small sets go the way of large ones: through the tables."""
    monkeypatch.setattr(detection, "KEPT_PIXELS", 0)


scores_and_masks = st.integers(2, 400).flatmap(
    lambda n: st.tuples(
        st.one_of(
            hnp.arrays(np.float32, n, elements=st.floats(width=32, allow_nan=False)),
            hnp.arrays(np.float32, n, elements=st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf])),
            hnp.arrays(np.float32, n, elements=st.floats(1000 - 2**-10, 1000 + 2**-10, width=32)),
            hnp.arrays(np.float32, n, elements=st.floats(-(2.0**-135), 2.0**-135, width=32)),
        ),
        hnp.arrays(np.uint8, n, elements=st.sampled_from([0, 0, 0, 1])),
    )
)


def with_both_classes(mask: np.ndarray) -> np.ndarray:
    mask[0], mask[-1] = 1, 0
    return mask


@settings(max_examples=30, deadline=None)
@given(scores_and_masks)
def test_small_sets_equal_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    scores, mask = pair[0], with_both_classes(pair[1])
    result = seen(scores, mask).compute()
    assert [result[name] for name in FIGURES] == pytest.approx(exact(scores, mask), abs=1e-9)
    assert all(result[f"{name}_bound"] == 0 for name in FIGURES)


@settings(max_examples=25, deadline=None)
@given(scores_and_masks)
def test_the_tables_keep_their_promise(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """Whatever the scores, scikit-learn's value is within the bound that is reported."""
    scores, mask = pair[0], with_both_classes(pair[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "KEPT_PIXELS", 0)
        result = seen(scores, mask).compute()
    for name, truth in zip(FIGURES, exact(scores, mask)):
        assert abs(result[name] - truth) <= result[f"{name}_bound"] + 1e-9, name


N = 300_000


@cache
def spacings() -> dict[str, np.ndarray]:
    """Scores that binning finds hard, with the anomalies of ``anomalies()`` a little stranger."""
    rng = np.random.default_rng(0)
    more, even, bell = anomalies().astype(float), rng.random(N), rng.standard_normal(N)
    blocks = rng.integers(0, 512, N) * 2048 + np.where(more == 1, 1024, 0) + rng.integers(0, 1024, N)
    lifted = bell + more
    return {
        "smooth": lifted,
        "smooth far from zero": 1000 + 10 * lifted,
        "very far from zero": 1e6 + lifted,
        "heavy-tailed": rng.standard_cauchy(N) * np.exp(more),
        "seventy decades": 10 ** (even * 70 - 35) * (1 + 1000 * more),
        "eight bits": np.round(np.clip(40 * lifted + 128, 0, 255)),
        "sixteen bits": np.round(np.clip(8000 * lifted + 30000, 0, 65535)),
        "constant": np.full(N, -3.0),
        "infinite": np.where(even < 0.1, np.inf, np.where(even > 0.9, -np.inf, lifted)),
        "a few ulps": 1000 + 1e-4 * (even + 0.3 * more),
        "a tight cluster": 1000 + 1e-2 * (even + 0.3 * more),
        "a cluster in a crowd": np.where(even < 0.5, 0.3 + 1e-6 * lifted, bell),
        "many clusters": np.round(bell * 3) / 7 + 1e-6 * (even + 0.5 * more),
        "saturated probabilities": -1 / (1 + np.exp(-(8 + 3 * bell - 4 * more))),
        "three scales": np.choose(
            rng.integers(0, 3, N), [1e-30 * even, 1 + 1e-6 * (even + 0.3 * more), 1e30 * even]
        ),
        "ordered inside every bin": (np.float32(1).view(np.int32) + blocks).astype(np.int32).view(np.float32),
    }


@cache
def anomalies() -> np.ndarray:
    return (np.random.default_rng(1).random(N) < 0.1).astype(np.uint8)


@pytest.mark.parametrize("name", spacings())
def test_tables_agree_with_scikit_learn(name: str, keep_nothing: None) -> None:
    scores, mask = spacings()[name].astype(np.float32), anomalies()
    result = seen(scores, mask).compute()
    for figure, truth in zip(FIGURES, exact(scores, mask)):
        assert result[figure] == pytest.approx(truth, abs=1e-4), figure
        assert abs(result[figure] - truth) <= result[f"{figure}_bound"] + 1e-9, figure


def test_order_and_partition_do_not_matter(keep_nothing: None) -> None:
    scores, mask = spacings()["many clusters"].astype(np.float32), anomalies()
    whole, left, right = seen(scores, mask), AnomalyCurve(), AnomalyCurve()
    shuffled = np.random.default_rng(2).permutation(N)
    for place, part in enumerate(np.array_split(shuffled, 5)):
        (left if place % 2 else right).update(scores[part], mask[part])
    left.merge(right)
    assert left.compute() == whole.compute()
    assert left.counts() == {**whole.counts(), "images": 5}


def test_a_merge_across_the_limit_of_exactness_equals_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "KEPT_PIXELS", N)
    scores, mask = spacings()["smooth"].astype(np.float32), anomalies()
    both, left, right = seen(scores, mask), seen(scores, mask), seen(scores + 1, mask)
    assert left.compute()["auroc_bound"] == 0
    both.update(scores + 1, mask)
    left.merge(right)
    assert left.compute() == both.compute()
    assert left.compute()["auroc_bound"] > 0
    assert left.kept_normal == []


def test_state_is_under_fifty_megabytes_and_flat(keep_nothing: None) -> None:
    curve = seen(np.zeros(10, dtype=np.float32), with_both_classes(np.zeros(10, dtype=np.uint8)))
    sizes = []
    for scores in (np.random.default_rng(0).standard_cauchy(N).astype(np.float32),) * 2:
        curve.update(scores, anomalies())
        sizes.append(
            sum(state.nbytes for state in curve.metric_state.values() if isinstance(state, torch.Tensor))
        )
        assert curve.kept_normal == curve.kept_anomalous == curve.summaries == []
    assert sizes[0] == sizes[1] < 50e6


def test_exact_mode_keeps_every_pixel(keep_nothing: None) -> None:
    scores, mask = spacings()["many clusters"], anomalies()
    result = seen(scores, mask, exact=True).compute()
    assert [result[name] for name in FIGURES] == pytest.approx(exact(scores, mask), abs=1e-12)


def test_float64_is_ranked_as_it_is_while_small_and_with_a_warning_when_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection, "KEPT_PIXELS", 1000)
    even = np.random.default_rng(0).random(1000)
    mask = with_both_classes((even > 0.7).astype(np.uint8))
    curve = seen(1000 + 1e-9 * even, mask)
    assert curve.compute()["auroc"] == pytest.approx(exact(1000 + 1e-9 * even, mask)[0])
    with pytest.warns(UserWarning, match="ranked as float32"):
        curve.update(even, mask)
    with pytest.warns(UserWarning, match="ranked as float32"):
        seen(np.repeat(even, 2), np.repeat(mask, 2))


def test_what_is_ignored_does_not_count_and_counts_are_told() -> None:
    scores, mask = spacings()["smooth"].astype(np.float32)[:1000], anomalies()[:1000]
    marked = np.concatenate([mask, np.full(500, IGNORE, dtype=np.uint8)])
    curve = seen(
        np.concatenate([scores, np.full(500, 99, dtype=np.float32)]).reshape(30, 50), marked.reshape(30, 50)
    )
    assert curve.compute() == seen(scores, mask).compute()
    assert curve.counts() == {"images": 1, "pixels": 1000, "anomalous": int(mask.sum()), "ignored": 500}


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_thresholds_do_what_they_promise(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "KEPT_PIXELS", kept)
    scores, mask = spacings()["smooth"].astype(np.float32), anomalies()
    curve = seen(scores, mask)
    found = scores[mask == 1] >= curve.threshold_at_tpr(0.9)
    assert 0.9 <= found.mean() < 0.901
    flagged = scores[mask == 0] >= curve.threshold_at_fpr(0.05)
    assert 0.049 < flagged.mean() <= 0.05
    precision, recall, _ = precision_recall_curve(mask, scores)
    f1 = 2 * precision * recall / (precision + recall)
    chosen = scores >= curve.threshold_at_best_f1()
    ours = 2 * (chosen & (mask == 1)).sum() / (chosen.sum() + mask.sum())
    assert ours == pytest.approx(f1.max(), abs=1e-4)


def test_no_threshold_flags_little_enough_of_a_constant_score() -> None:
    curve = seen(np.zeros(4, dtype=np.float32), np.array([0, 0, 1, 1], dtype=np.uint8))
    assert curve.threshold_at_fpr(0.5) == np.inf
    assert curve.threshold_at_tpr(0.5) == 0


def test_curve_points_lie_on_scikit_learns_curve(keep_nothing: None) -> None:
    scores, mask = spacings()["smooth"].astype(np.float32), anomalies()
    points = seen(scores, mask).curve(200)
    fpr, tpr, _ = roc_curve(mask, scores)
    assert 150 < len(points["tpr"]) <= 201
    assert np.abs(np.interp(points["fpr"], fpr, tpr) - points["tpr"]).max() < 1e-3
    assert points["tpr"][-1] == points["fpr"][-1] == 1
    assert points["precision"][-1] == pytest.approx(mask.mean())


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    mask = (rng.random((count, 20, 30)) < 0.05).astype(np.uint8)
    scores = rng.standard_normal(mask.shape) + mask + rng.standard_normal((count, 1, 1))
    mask[0] = 0  # an image without anomalies is ordinary
    return scores.astype(np.float32), mask


def test_confidence_intervals_are_those_of_a_plain_bootstrap() -> None:
    scores, mask = images(20)
    intervals = seen(scores, mask, per_image=True).confidence_intervals(replicates=100, seed=1)
    rng = np.random.default_rng(0)
    draws = [rng.integers(20, size=20) for _ in range(100)]
    plain = np.array([exact(scores[draw].ravel(), mask[draw].ravel()) for draw in draws])
    for column, name in enumerate(FIGURES):
        low, high = np.quantile(plain[:, column], [0.025, 0.975])
        tolerance = 0.35 * (high - low)
        assert intervals[name] == pytest.approx((low, high), abs=tolerance)


def test_confidence_intervals_do_not_depend_on_the_order_of_images() -> None:
    scores, mask = images(8)
    batch, alone = seen(scores, mask, per_image=True), AnomalyCurve(per_image=True)
    for index in reversed(range(8)):
        alone.update(scores[index], mask[index])
    assert batch.confidence_intervals(replicates=20) == alone.confidence_intervals(replicates=20)


def test_works_on_tensors_of_any_float_type_and_stays_on_the_cpu() -> None:
    scores, mask = images(2)
    plain = seen(scores, mask).compute()
    assert seen(torch.from_numpy(scores), torch.from_numpy(mask).long()).compute() == plain
    half = seen(torch.from_numpy(scores).bfloat16(), torch.from_numpy(mask))
    assert half.compute()["auroc"] == pytest.approx(plain["auroc"], abs=1e-2)
    assert AnomalyCurve().to("meta").bins.device.type == "cpu"


GOOD = np.zeros((2, 2), dtype=np.float32), np.array([[0, 1], [IGNORE, 0]], dtype=np.uint8)


@pytest.mark.parametrize(
    ("scores", "mask", "message"),
    [
        (np.array([[np.nan, 0], [0, 0]]), GOOD[1], "1 scores are NaN"),
        (np.zeros((2, 3)), GOOD[1], "differ in size"),
        (GOOD[0], np.array([[0, 2], [2, 0]]), r"mask values \[2\]"),
        (GOOD[0], np.full((2, 2), IGNORE), "every pixel is ignored"),
        (np.array([[np.inf, 0], [0, 0]], dtype=np.float16), GOOD[1], "float16 scores overflowed"),
        (np.array([[1e300, 0], [0, 0]]), GOOD[1], "beyond the range of float32"),
        (np.zeros((2, 2), dtype=bool), GOOD[1], "real numbers are needed"),
    ],
)
def test_bad_input_is_refused_by_name_and_leaves_no_trace(
    scores: np.ndarray, mask: np.ndarray, message: str
) -> None:
    curve = seen(*GOOD)
    before = curve.counts()
    with pytest.raises(EvaluationError, match=rf"0001\.npy: .*{message}"):
        curve.update(scores, mask, source="0001.npy")
    assert curve.counts() == before


def test_an_image_without_anomalies_is_ordinary_but_a_set_is_refused_at_the_end() -> None:
    curve = seen(np.zeros((2, 2), dtype=np.float32), np.zeros((2, 2), dtype=np.uint8))
    with pytest.raises(EvaluationError, match="no anomalous pixel"):
        curve.compute()
    curve.update(*GOOD)
    assert curve.compute()["auroc"] == 0.5
    with pytest.raises(EvaluationError, match="no pixel has been seen"):
        AnomalyCurve().threshold_at_tpr(0.5)
    with pytest.raises(EvaluationError, match="per_image"):
        curve.confidence_intervals()
