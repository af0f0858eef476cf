"""What is unknown at each position of a slider, against thresholds applied one by one."""

from dataclasses import replace

import numpy as np

from gmmseg.inference.image_losses import large_components
from gmmseg.models import Calibration
from gmmseg.models.calibration_file import PROMISED, Threshold
from gmmseg.models.false_alarms import FalseAlarmCurve, FalseAlarms
from gmmseg.report.moving_threshold import levels, with_slider
from gmmseg.report.panels import Example, ModelMaps
from gmmseg.report.parts import NEVER

SCORES = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
CURVE = FalseAlarmCurve(99, (-1.0, 0.0, 1.0, 2.0, 3.0), (0.6, 0.3, 0.1, 0.05, 0.01))


def example(name: str, *models: str, scores: np.ndarray = SCORES) -> Example:
    grey = np.zeros(scores.shape, np.uint8)
    maps = ModelMaps(grey, np.ones_like(scores), scores)
    return Example(name, np.zeros((*scores.shape, 3), np.uint8), dict.fromkeys(models, maps))


def calibrated(min_area: int = 1) -> Calibration:
    asked = FalseAlarms(0.05) if min_area == 1 else FalseAlarms(0.05, "image", min_area)
    found = Threshold(2.0, false_alarms=asked, images=99)
    return Calibration(
        "w", {PROMISED: found}, 1.0, None, None, None, false_alarms={"pixel": CURVE, "image": CURVE}
    )


def test_levels_say_at_each_position_what_its_threshold_says():
    thresholds = [None, 2.5, 1.0, 0.3, -0.5]
    for min_area in (1, 4):
        found = levels(SCORES, thresholds, min_area)
        assert not (found <= 0).any(), "no threshold, nothing unknown"
        for position, threshold in enumerate(thresholds[1:], 1):
            expected = large_components(np.float32(threshold) < SCORES, min_area)
            assert np.array_equal(found <= position, expected)
    assert (levels(SCORES, [None], 1) == NEVER).all()


def test_the_start_is_the_models_own_threshold_and_positions_count_in_false_alarms():
    for min_area in (1, 3):
        calibration = calibrated(min_area)
        (live,), slider = with_slider([example("x", "GMM")], {"GMM": calibration})
        assert slider.positions[slider.start] == "5 %"
        found = live.models["GMM"].levels
        assert np.array_equal(found <= slider.start, large_components(SCORES > 2.0, min_area))
        rates = [float(text.removesuffix(" %")) for text in slider.positions]
        assert rates == sorted(set(rates))
        assert found.max() == NEVER or len(rates) - 1 >= found.max()
        assert "at most 5 %" in slider.notes[slider.start]


def test_models_that_promise_the_same_are_named_together():
    pair = {"GMM": calibrated(), "twin": replace(calibrated())}
    _, slider = with_slider([example("x", "GMM", "twin")], pair)
    assert slider.notes[slider.start].startswith("The threshold of GMM and of twin flags")


def test_models_without_a_calibration_get_a_slider_that_promises_nothing():
    other = example("y", "GMM", scores=SCORES + 5)
    live, slider = with_slider([example("x", "GMM"), other], {"GMM": None})
    assert "raw" in slider.label
    assert all("promises nothing" in note for note in slider.notes)
    shares = [
        [(each.models["GMM"].levels <= p).mean() for p in range(len(slider.positions))] for each in live
    ]
    assert shares[0] == sorted(shares[0]), "to the right more is unknown"
    assert shares[1][0] > 0 or shares[1][1] > 0, "the scale covers all pictures"
    _, several = with_slider([example("x", "GMM", "twin")], {"GMM": None, "twin": None})
    assert "Strangest" in several.label


def test_scores_that_are_all_the_same_have_a_slider_too():
    flat = np.zeros((3, 4), np.float32)
    (live,), slider = with_slider([example("x", "GMM", scores=flat)], {"GMM": None})
    assert live.models["GMM"].levels.shape == (3, 4)
    assert 0 <= slider.start < len(slider.positions)
