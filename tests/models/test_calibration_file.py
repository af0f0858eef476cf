"""What was found after training: kept beside the weights, refused where it does not belong to them."""

import json
import math
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import gmmseg
from gmmseg.inference import Predictor
from gmmseg.models import Calibration, InferenceSettings, WeightsError
from gmmseg.models.calibration_file import (
    CALIBRATION_FILE,
    PIXELS,
    CalibrationData,
    ScoreMoments,
    Threshold,
    write_calibration,
)
from gmmseg.models.saving import CONFIG_FILE, WEIGHTS_FILE, digest

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format1"


@pytest.fixture(scope="module")
def segmenter():
    torch.manual_seed(0)
    return gmmseg.build("tiny_unet", num_classes=3)


@pytest.fixture
def calibration(segmenter):
    return Calibration(
        weights=digest(segmenter),
        thresholds={PIXELS: Threshold(-1.5, 0.05), "images": Threshold(2.25, 0.1)},
        temperature=1.25,
        typical=(0.5, -2.0, 3.0),
        data=CalibrationData("folder", "val", ("a", "b", "c"), 7),
        time="2026-01-02T03:04:05+00:00",
        quantiles=((0.5, -7.0), (0.01, 1.0)),
    )


@pytest.fixture
def folder(segmenter, calibration, tmp_path):
    segmenter.calibration = calibration
    segmenter.save_pretrained(tmp_path)
    segmenter.calibration = None
    return tmp_path


def test_it_comes_back_as_it_was_with_every_field(folder, calibration):
    again = gmmseg.from_pretrained(folder)
    assert again.calibration == calibration
    assert again.calibration.time == calibration.time
    assert again.temperature == 1.25
    assert again.calibration.threshold == -1.5
    assert gmmseg.from_pretrained(folder, calibrated=False).calibration is None
    assert again.calibration.version == gmmseg.__version__


def test_a_view_other_than_the_calibrated_one_is_told(segmenter, calibration):
    seen = InferenceSettings(short_side=64)
    segmenter.calibration, segmenter.inference = replace(calibration, inference=seen), seen
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="its mixtures have never been fitted")
            Predictor(segmenter)
        with pytest.warns(UserWarning, match="short_side=64, window=0, stride=0, .* short_side=32"):
            Predictor(segmenter, short_side=32)
    finally:
        segmenter.calibration, segmenter.inference = None, InferenceSettings()


def test_the_view_comes_back_and_a_broken_one_is_refused(folder, calibration):
    seen = replace(calibration, inference=InferenceSettings(short_side=64, window=48))
    write_calibration(seen, folder)
    assert gmmseg.from_pretrained(folder).calibration == seen
    path = folder / CALIBRATION_FILE
    tree = json.loads(path.read_text())
    for broken in ({"short_side": -1}, {"side": 3}, 7):
        path.write_text(json.dumps({**tree, "inference": broken}))
        with pytest.raises(WeightsError, match=r"calibration\.json.*calibrate"):
            gmmseg.from_pretrained(folder)


def test_moments_come_back_and_files_without_them_are_read(folder, calibration):
    more = replace(calibration, moments={"energy": ScoreMoments(-3.0, 0.5)}, score="energy")
    write_calibration(more, folder)
    assert gmmseg.from_pretrained(folder).calibration == more
    path = folder / CALIBRATION_FILE
    tree = json.loads(path.read_text())
    del tree["moments"], tree["score"]
    path.write_text(json.dumps(tree))
    assert gmmseg.from_pretrained(folder).calibration == calibration


def test_writing_it_leaves_weights_and_configuration_alone(folder, calibration):
    before = {name: (folder / name).read_bytes() for name in (WEIGHTS_FILE, CONFIG_FILE)}
    write_calibration(replace(calibration, temperature=2.0), folder)
    assert all((folder / name).read_bytes() == content for name, content in before.items())
    assert gmmseg.from_pretrained(folder).temperature == 2.0
    assert sorted(os.listdir(folder)) == sorted([*before, CALIBRATION_FILE])


def test_saving_without_one_removes_that_of_the_weights_before(folder, segmenter):
    segmenter.save_pretrained(folder)
    assert sorted(os.listdir(folder)) == [CONFIG_FILE, WEIGHTS_FILE]


def test_weights_that_changed_since_are_saved_without_it_and_with_a_warning(folder):
    model = gmmseg.from_pretrained(folder)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.warns(UserWarning, match="belongs to other weights.*calibrate again"):
        model.save_pretrained(folder)
    assert not (folder / CALIBRATION_FILE).exists()
    assert gmmseg.from_pretrained(folder).calibration is None


def test_that_of_other_weights_is_refused(folder, tmp_path):
    torch.manual_seed(1)
    gmmseg.build("tiny_unet", num_classes=3).save_pretrained(tmp_path / "other")
    (tmp_path / "other" / CALIBRATION_FILE).write_bytes((folder / CALIBRATION_FILE).read_bytes())
    with pytest.raises(WeightsError, match=r"calibration\.json: belongs to other weights.*gmmseg calibrate"):
        gmmseg.from_pretrained(tmp_path / "other")


SPOILT = [
    ("weights", "", "weights must not be empty"),
    ("weights", None, "weights must be text"),
    ("thresholds", [], "thresholds must be an object"),
    ("thresholds", {"pixels": 3.0}, "thresholds/pixels must be an object"),
    ("thresholds", {"pixels": {"value": math.nan, "share": 0.05}}, "value must be finite"),
    ("thresholds", {"pixels": {"value": math.inf, "share": 0.05}}, "value must be finite"),
    ("thresholds", {"pixels": {"value": True, "share": 0.05}}, "value must be a number"),
    ("thresholds", {"pixels": {"value": 1.0, "share": 5}}, "share must be at most 1"),
    ("thresholds", {"pixels": {"share": 0.05}}, "thresholds/pixels lacks value"),
    ("thresholds", {"pixels": {"value": 1.0, "more": 0}}, "thresholds/pixels holds unknown more"),
    ("temperature", 0, "temperature must be more than 0"),
    ("temperature", math.nan, "temperature must be finite"),
    ("temperature", None, "temperature must be a number"),
    ("typical", [1.0], "typical has 1 entries for 3 classes"),
    ("typical", [math.nan] * 3, "typical must be finite"),
    ("typical", 5, "typical must be a list"),
    ("quantiles", [[0.5, math.nan]], "quantiles must be finite"),
    ("quantiles", [[0.5]], "quantiles must be a list of 2"),
    ("data", {"name": "x", "split": "val", "classes": ["a"], "images": 1}, "was found on 1 classes"),
    ("data", {"name": "x", "split": "val", "classes": ["a"] * 3, "images": 0}, "images must be at least 1"),
    ("data", {"name": "x"}, "data lacks classes, images, split"),
    ("time", 5, "time must be text"),
    ("score", "", "score must not be empty"),
    ("score", "fused", "the fused score needs the moments of its parts"),
    ("moments", [], "moments must be an object"),
    ("moments", {"energy": 3.0}, "moments/energy must be an object"),
    ("moments", {"energy": {"mean": 0.0}}, "moments/energy lacks deviation"),
    ("moments", {"energy": {"mean": 0.0, "deviation": 0.0}}, "deviation must be more than 0"),
    ("moments", {"energy": {"mean": math.nan, "deviation": 1.0}}, "mean must be finite"),
    ("library", "other", "not a calibration of a gmmseg segmenter"),
    ("format", 99, "format 99, this version of gmmseg reads format 1"),
    ("format", True, "format True"),
    ("surprise", 1, "it holds unknown surprise"),
]


@pytest.mark.parametrize(("key", "value", "reason"), SPOILT, ids=lambda each: str(each)[:30])
def test_values_that_cannot_be_are_refused(folder, key, value, reason):
    path = folder / CALIBRATION_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(WeightsError) as refused:
        gmmseg.from_pretrained(folder)
    assert str(refused.value).startswith(f"{path}: ")
    assert reason in str(refused.value)
    assert "gmmseg calibrate" in str(refused.value)


@pytest.mark.parametrize("key", ["weights", "thresholds", "temperature", "typical", "data", "time"])
def test_what_lacks_is_named(folder, key):
    path = folder / CALIBRATION_FILE
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))
    with pytest.raises(WeightsError, match=f"it lacks {key}"):
        gmmseg.from_pretrained(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_files_that_are_no_calibration_at_all_are_refused(folder, content):
    (folder / CALIBRATION_FILE).write_bytes(content)
    with pytest.raises(WeightsError, match=r"calibration\.json: "):
        gmmseg.from_pretrained(folder)


def test_a_pipe_in_its_place_is_not_waited_for(folder):
    (folder / CALIBRATION_FILE).unlink()
    os.mkfifo(folder / CALIBRATION_FILE)
    with pytest.raises(WeightsError, match="no regular file"):
        gmmseg.from_pretrained(folder)


def test_its_own_file_counts_more_than_what_format_1_says(folder, calibration):
    config = json.loads((folder / CONFIG_FILE).read_text())
    old = {**config, "format": 1, "threshold": 9.0, "temperature": 9.0, "typical": None}
    (folder / CONFIG_FILE).write_text(json.dumps(old))
    assert gmmseg.from_pretrained(folder).calibration == calibration


@pytest.mark.parametrize("name", ["default", "paper", "reference", "softmax"])
def test_weights_of_format_1_predict_as_they_did_and_keep_it_when_saved_anew(name, tmp_path):
    model = gmmseg.from_pretrained(FORMAT_1 / name)
    expected = np.load(FORMAT_1 / name / "expected.npz")
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    config = json.loads((FORMAT_1 / name / CONFIG_FILE).read_text())
    model.save_pretrained(tmp_path)
    again = gmmseg.from_pretrained(tmp_path)
    assert again.calibration == model.calibration
    assert json.loads((tmp_path / CONFIG_FILE).read_text()).keys().isdisjoint({"threshold", "temperature"})
    for each in (model, again):
        predicted = Predictor(each).predict((images[0] * 255).byte())
        for key in ("anomaly", "posterior"):
            found = getattr(predicted, key)[..., ::8, ::8].numpy()
            np.testing.assert_allclose(found, expected[key], atol=1e-4, rtol=1e-4)
        assert each.calibration.threshold == config["threshold"]
        assert each.temperature == config["temperature"]
        typical = config["typical"] and tuple(config["typical"])
        assert each.calibration.typical == typical
