"""What a prediction says is unknown, and which promise that carries."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.inference import Meaning, Prediction, Predictor, predict_files

ANOMALY = torch.tensor([[9.0, 1.0, 7.0], [1.0, 1.0, 6.5], [5.5, 1.0, 6.0]])
LABELS = torch.tensor([[2, 1, 2], [0, 0, 1], [0, 0, 1]], dtype=torch.uint8)
POSTERIOR = torch.nn.functional.one_hot(LABELS.long(), 3).movedim(-1, 0).float()


def test_pixels_above_the_threshold_are_unknown_and_have_small_p_values(promised):
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, Meaning(promised(6.0)))
    assert prediction.unknown.tolist() == [[True, False, True], [False, False, True], [False, False, False]]
    assert prediction.promise.per == "pixel"
    assert torch.equal(prediction.p_values <= prediction.promise.alpha, prediction.unknown)
    assert prediction.p_values[0].tolist() == [0.2, 0.9, 0.2]
    assert torch.equal(prediction.above(8.0), ANOMALY > 8)


def test_small_regions_are_no_alarm(promised):
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, Meaning(promised(6.0, min_area=2)))
    assert prediction.unknown.tolist() == [[False, False, True], [False, False, True], [False, False, False]]
    assert prediction.above(6.6).tolist() == [[False] * 3] * 3
    assert (prediction.promise.per, prediction.promise.min_area) == ("image", 2)


def test_classes_may_have_thresholds_of_their_own(promised):
    """5 for class 0, the common 6 for class 1 and 8 for class 2."""
    prediction = Prediction(LABELS, POSTERIOR, ANOMALY, Meaning(promised(6.0)))
    expected = [[True, False, False], [False, False, True], [True, False, False]]
    assert prediction.unknown_by_class.tolist() == expected
    regions = Prediction(LABELS, POSTERIOR, ANOMALY, Meaning(promised(5.9, min_area=2))).unknown_by_class
    assert regions.tolist() == [[False] * 3, [False, False, True], [False, False, True]]


def test_strips_say_nothing_of_what_is_unknown(segmenter, promised):

    segmenter.calibration = promised()
    assert all(strip.unknown is None for strip in Predictor(segmenter).strips(torch.rand(3, 6, 7)))
    assert Predictor(segmenter).predict(torch.rand(3, 6, 7)).unknown.shape == (6, 7)


@pytest.fixture
def seen(segmenter, calibration, tmp_path):
    """A Prediction of a file street.png of noise."""
    segmenter.calibration = calibration(3.0)
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "street.png")
    return Predictor(segmenter).predict(tmp_path / "street.png")


def test_a_prediction_knows_what_its_numbers_mean(seen):
    assert (seen.threshold, seen.score, seen.name) == (3.0, "nll", "street")
    assert seen.class_names == ("red", "green", "blue")
    assert seen.colours == ((200, 0, 0), (0, 200, 0), (0, 0, 200))
    said = repr(seen)
    assert said.startswith('Prediction of "street", 20x12: ')
    assert said.endswith(f"; {100 * float(seen.unknown.float().mean()):.3g} % unknown (nll)")


def test_a_prediction_saves_what_predict_files_writes(seen, segmenter, tmp_path):
    paths = seen.save(tmp_path / "saved")
    predict_files(Predictor(segmenter), [tmp_path / "street.png"], tmp_path / "written")
    assert len(paths) == 6
    for path in paths:
        assert path.read_bytes() == (tmp_path / "written" / path.relative_to(tmp_path / "saved")).read_bytes()


def test_pictures_of_a_prediction(seen, monkeypatch):
    assert np.array_equal(np.asarray(seen.to_pil()), seen.labels)
    assert seen.overlay().size == seen.heat_map().size == (20, 12)
    assert seen.overlay(legend=True).height > 12
    with Image.open(io.BytesIO(seen._repr_png_())) as picture:
        assert picture.width == 1000
    shown = []
    monkeypatch.setattr(Image.Image, "show", lambda self, title: shown.append((self.size, title)))
    seen.show()
    assert shown[0][1] == "street"


def test_a_prediction_made_by_hand_has_pictures_too():
    bare = Prediction(LABELS, POSTERIOR, ANOMALY)
    assert bare.class_names == tuple(f"class {index}" for index in range(len(POSTERIOR)))
    assert bare.overlay().size == LABELS.shape[::-1]
    assert "no threshold" in repr(bare)


def test_lists_and_folders_give_lists(segmenter, seen, tmp_path):
    predictor = Predictor(segmenter)
    array = np.zeros((5, 7, 3), np.uint8)
    path, other = predictor.predict([tmp_path / "street.png", array])
    assert (path.name, other.name, other.labels.shape) == ("street", "image1", (5, 7))
    assert torch.equal(path.anomaly, seen.anomaly)
    (tmp_path / "deep").mkdir()
    Image.fromarray(array).save(tmp_path / "deep/black.png")
    assert [each.name for each in predictor.predict(tmp_path)] == ["street", "deep/black"]
    assert predictor.predict([]) == []
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="none: holds no images"):
        predictor.predict(tmp_path / "none")


def test_a_threshold_that_is_given_promises_nothing(segmenter, promised):
    segmenter.calibration = promised(6.0)
    noise = torch.rand(3, 9, 9)
    own, given = Predictor(segmenter).predict(noise), Predictor(segmenter).predict(noise, threshold=2.0)
    assert (own.promise is None, given.promise) == (False, None)
    assert torch.equal(given.unknown, own.above(2.0))
    with pytest.raises(ValueError, match="finite"):
        Predictor(segmenter).predict(noise, threshold=float("inf"))


def test_the_score_that_is_calibrated_has_the_threshold_by_its_name_too(segmenter, calibration):
    segmenter.calibration = calibration(3.0)
    noise = torch.rand(3, 9, 9)
    usual = Predictor(segmenter).predict(noise)
    named, other = (Predictor(segmenter, score=name).predict(noise) for name in ("nll", "entropy"))
    assert torch.equal(named.anomaly, usual.anomaly)
    assert (named.threshold, other.threshold, other.unknown, other.p_values) == (3.0, None, None, None)
    logits = 2 * -10 * (noise[:, None] - torch.eye(3)[..., None, None]).square().sum(0)
    posterior = logits.softmax(0)
    torch.testing.assert_close(other.anomaly, -(posterior * posterior.log()).sum(0), atol=1e-4, rtol=1e-4)


def test_a_score_that_is_none_is_refused_with_the_nearest_name(segmenter):
    with pytest.raises(ValueError, match=r"unknown score 'entrpy' \(did you mean entropy\?\): choose"):
        Predictor(segmenter, score="entrpy")
    with pytest.raises(ValueError, match="fused: the usual energy and density of known cells"):
        Predictor(segmenter, score="fused")
