"""What a prediction says is unknown, and which promise that carries."""

import torch

from gmmseg.inference import Prediction

ANOMALY = torch.tensor([[9.0, 1.0, 7.0], [1.0, 1.0, 6.5], [5.5, 1.0, 6.0]])
LABELS = torch.tensor([[2, 1, 2], [0, 0, 1], [0, 0, 1]], dtype=torch.uint8)
POSTERIOR = torch.nn.functional.one_hot(LABELS.long(), 3).movedim(-1, 0).float()


def test_pixels_above_the_threshold_are_unknown_and_have_small_p_values(promised):
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, promised(6.0))
    assert prediction.unknown.tolist() == [[True, False, True], [False, False, True], [False, False, False]]
    assert prediction.promise.per == "pixel"
    assert torch.equal(prediction.p_values <= prediction.promise.alpha, prediction.unknown)
    assert prediction.p_values[0].tolist() == [0.2, 0.9, 0.2]
    assert torch.equal(prediction.above(8.0), ANOMALY > 8)


def test_small_regions_are_no_alarm(promised):
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, promised(6.0, min_area=2))
    assert prediction.unknown.tolist() == [[False, False, True], [False, False, True], [False, False, False]]
    assert prediction.above(6.6).tolist() == [[False] * 3] * 3
    assert (prediction.promise.per, prediction.promise.min_area) == ("image", 2)


def test_classes_may_have_thresholds_of_their_own(promised):
    """5 for class 0, the common 6 for class 1 and 8 for class 2."""
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, promised(6.0))
    expected = [[True, False, False], [False, False, True], [True, False, False]]
    assert prediction.unknown_by_class.tolist() == expected
    regions = Prediction(LABELS, POSTERIOR, ANOMALY, promised(5.9, min_area=2)).unknown_by_class
    assert regions.tolist() == [[False] * 3, [False, False, True], [False, False, True]]


def test_strips_say_nothing_of_what_is_unknown(segmenter, promised):
    from gmmseg.inference import Predictor

    segmenter.calibration = promised()
    assert all(strip.unknown is None for strip in Predictor(segmenter).strips(torch.rand(3, 6, 7)))
    assert Predictor(segmenter).predict(torch.rand(3, 6, 7)).unknown.shape == (6, 7)
