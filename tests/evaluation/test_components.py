import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmseg.evaluation import ComponentMetrics, EvaluationError
from gmmseg.evaluation.components import PRESETS, TAUS, Preset
from gmmseg.labels import IGNORE


def pieces(region: set[tuple[int, int]]) -> list[set[tuple[int, int]]]:
    """8-connected components of a set of pixels, by flooding."""
    left, found = set(region), []
    while left:
        front = [left.pop()]
        piece = set(front)
        while front:
            y, x = front.pop()
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            piece |= near
            front += near
        found.append(piece)
    return found


def by_definition(
    images: list[tuple[np.ndarray, np.ndarray]], threshold: float, preset: Preset
) -> dict[str, float]:
    """The protocol, step by step, on sets of pixels."""
    siou, ppv = [], []
    for scores, mask in images:
        ignored = {tuple(p) for p in np.argwhere(mask == IGNORE)}
        flagged = {tuple(p) for p in np.argwhere(scores >= threshold)} - ignored
        guesses = [piece for piece in pieces(flagged) if len(piece) >= preset.smallest_predicted]
        components, small = [], set()
        for piece in pieces({tuple(p) for p in np.argwhere(mask == 1)}):
            if len(piece) < preset.smallest_true:
                small |= piece
            else:
                components.append(piece)
        truth = set().union(*components)
        guesses = [guess - small for guess in guesses if guess - small]
        for k in components:
            p = set().union(*(guess for guess in guesses if guess & k))
            a = p & (truth - k)
            siou.append(len(k & p) / (len(k | p) - len(a)))
        ppv += [len(guess & truth) / len(guess) for guess in guesses]
    f1 = []
    for tau in TAUS:
        tp, fn = sum(s >= tau for s in siou), sum(s < tau for s in siou)
        fp = sum(v < tau for v in ppv)
        f1.append(2 * tp / (2 * tp + fn + fp))
    return {"f1_star": np.mean(f1), "siou": np.mean(siou), "ppv": np.mean(ppv) if ppv else np.nan}


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.zeros((24, 30), dtype=np.uint8)
    scores = rng.normal(0, 0.3, mask.shape)
    for _ in range(4):
        y, x, h, w = rng.integers([0, 0, 1, 1], [20, 26, 9, 9])
        mask[y : y + h, x : x + w] = 1
        dy, dx = rng.integers(-3, 4, 2)
        scores[max(y + dy, 0) : y + dy + h, max(x + dx, 0) : x + dx + w] += rng.random() * 2
    mask[rng.random(mask.shape) < 0.05] = IGNORE
    mask[0, 0:3] = 1
    return scores, mask


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000))
def test_equals_the_definition(seed: int) -> None:
    preset = Preset(smallest_predicted=6, smallest_true=3)
    images = [blobs(seed), blobs(seed + 1)]
    metric = ComponentMetrics(preset, threshold=0.5)
    for scores, mask in images:
        metric.update(scores, mask)
    found, expected = metric.compute(), by_definition(images, 0.5, preset)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, nan_ok=True), name


def test_a_false_alarm_over_small_truth_does_not_vanish() -> None:
    mask = np.zeros((20, 40), dtype=np.uint8)
    mask[:, 30:] = 1
    mask[8:11, 5:8] = 1  # 9 pixels: too small to be judged
    scores = (mask == 1).astype(np.float32)
    scores[6:13, 3:10] = 1  # 49 pixels, 40 of them beside the small one
    metric = ComponentMetrics(Preset(smallest_predicted=45, smallest_true=10), threshold=0.5)
    metric.update(scores, mask)
    assert metric.compute()["predicted_components"] == 2
    assert metric.compute()["ppv"] == 0.5


def test_presets_are_the_protocols() -> None:
    assert {"anomaly": Preset(500, 100), "obstacle": Preset(50, 10)} == PRESETS
    assert TAUS == (0.25, 0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75)


def test_a_perfect_prediction_scores_one_and_touching_corners_are_one_component() -> None:
    mask = np.zeros((40, 40), dtype=np.uint8)
    mask[0:10, 0:10] = mask[10:20, 10:20] = 1
    metric = ComponentMetrics("obstacle", threshold=0.5)
    metric.update(mask.astype(np.float32), mask)
    result = metric.compute()
    assert (result["f1_star"], result["siou"], result["ppv"]) == (1, 1, 1)
    assert result["true_components"] == result["predicted_components"] == 1


def test_one_prediction_over_two_anomalies_is_not_punished_for_the_other() -> None:
    mask = np.zeros((10, 50), dtype=np.uint8)
    mask[:, :20] = mask[:, 30:] = 1
    metric = ComponentMetrics("obstacle", threshold=0.5)
    metric.update(np.ones((10, 50), dtype=np.float32), mask)
    assert metric.compute()["siou"] == pytest.approx(200 / (200 + 100))


def test_batches_and_merges_equal_single_images() -> None:
    images = [blobs(seed) for seed in range(6)]
    preset = Preset(6, 3)
    single, left, right = (ComponentMetrics(preset, threshold=0.5) for _ in range(3))
    for scores, mask in images:
        single.update(scores, mask)
    left.update(*(np.stack(part) for part in zip(*images[:4])))
    right.update(*(np.stack(part) for part in zip(*images[4:])))
    left.merge(right)
    assert left.compute() == pytest.approx(single.compute())


def test_refusals() -> None:
    with pytest.raises(EvaluationError, match="anomaly, obstacle"):
        ComponentMetrics("anomalies", threshold=0)
    metric = ComponentMetrics("anomaly", threshold=0)
    with pytest.raises(EvaluationError, match=r"a\.png: .*NaN"):
        metric.update(np.full((4, 4), np.nan), np.zeros((4, 4)), source="a.png")
    metric.update(np.zeros((4, 4)), np.ones((4, 4)))
    with pytest.raises(EvaluationError, match="large enough"):
        metric.compute()
