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
    PROMISED,
    CalibrationData,
    ScoreMoments,
    Threshold,
    write_calibration,
)
from gmmseg.models.card import CARD_FILE
from gmmseg.models.false_alarms import FalseAlarmCurve, FalseAlarms, Promise
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
        data=CalibrationData("folder", "val", ("a", "b", "c"), 120),
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
    more = replace(calibration, moments={"energy": ScoreMoments(-3.0, 0.5)})
    write_calibration(more, folder)
    assert gmmseg.from_pretrained(folder).calibration == more
    path = folder / CALIBRATION_FILE
    tree = json.loads(path.read_text())
    del tree["moments"], tree["score"]
    path.write_text(json.dumps(tree))
    assert gmmseg.from_pretrained(folder).calibration == calibration


PROMISED_ONE = Threshold(
    2.5, false_alarms=FalseAlarms(0.01, "image", 50), images=101, by_class=(1.5, None, 2.0)
)


@pytest.fixture
def promising(calibration):
    return replace(calibration, thresholds={PROMISED: PROMISED_ONE})


def test_a_promise_comes_back_with_its_curves(folder, promising):
    curve = FalseAlarmCurve(101, (-3.25, 2.5), (0.5, 0.01))
    promising = replace(promising, false_alarms={"pixel": curve, "image": curve})
    write_calibration(promising, folder)
    again = gmmseg.from_pretrained(folder).calibration
    assert again == promising
    assert again.promise == Promise("image", 0.01, 101, 50, "folder/val")
    assert (again.threshold, again.min_area) == (2.5, 50)
    assert again.class_thresholds() == (1.5, 2.5, 2.0)
    assert again.classes_without_own_threshold() == ("b",)
    assert again.false_alarm_rate(3.0, "image") == 0.01
    assert again.false_alarm_rate(-4.0) == 1.0
    assert again.p_values(torch.tensor([2.5, 2.6])).tolist() == [0.5, 0.01]


def test_the_promise_counts_more_than_the_quantile_and_without_curves_nothing_is_made_up(calibration):
    both = replace(calibration, thresholds={PIXELS: Threshold(-1.5, 0.05), PROMISED: PROMISED_ONE})
    assert both.threshold == 2.5
    assert calibration.promise is None
    assert calibration.class_thresholds() is None
    assert calibration.false_alarm_rate(1.0) is None
    assert calibration.p_values(torch.zeros(2)) is None


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        (PROMISED_ONE,
         "flags a region of at least 50 pixels in at most 1 % of new normal images like those of folder/val, "
         "101 images"),
        (Threshold(1.0, false_alarms=FalseAlarms(0.1, "image"), images=9),
         "flags anything in at most 10 % of new normal images like those of folder/val, 9 images"),
        (Threshold(1.0, false_alarms=FalseAlarms(0.5), images=1),
         "flags on average at most 50 % of the known pixels of a new image like those of folder/val, "
         "1 image"),
        (Threshold(1.0, 0.05),
         "is exceeded by 5 % of all known pixels of folder/val together, no promise of a new image"),
    ],
)  # fmt: skip
def test_promises_are_told_in_words(calibration, threshold, words):
    assert replace(calibration, thresholds={PROMISED: threshold}).promise_text() == words


@pytest.mark.parametrize(
    ("value", "images", "reason"),
    [
        (-100.0, 101, "the threshold -100 does not keep its promise, 1 % false alarms per image: .* 50 %"),
        (2.5, 10_000, "it rests on 10000 images, and there were 120"),
    ],
)
def test_a_promise_that_the_rest_of_the_file_contradicts_is_refused(promising, value, images, reason):
    curve = FalseAlarmCurve(101, (-3.25, 2.5), (0.5, 0.01))
    known = replace(promising, false_alarms={"image": curve})
    found = replace(PROMISED_ONE, value=value, images=images)
    with pytest.raises(ValueError, match=reason):
        replace(known, thresholds={PROMISED: found})


def test_words_without_data_and_without_a_threshold(calibration):
    unknown = replace(calibration, thresholds={PIXELS: Threshold(1.0)}, data=None)
    assert unknown.promise_text().startswith("is exceeded by an unknown share of all known pixels together")
    assert replace(calibration, thresholds={}).promise_text() == "is not known yet"


def test_that_of_other_classes_is_refused(folder, calibration):
    config = json.loads((folder / CONFIG_FILE).read_text())
    for names, reason in (
        (["b", "a", "c"], "the classes in another order"),
        (["x", "y", "z"], "other classes"),
    ):
        (folder / CONFIG_FILE).write_text(json.dumps({**config, "label_names": names}))
        with pytest.raises(WeightsError, match=f"was found on {reason}.*gmmseg calibrate"):
            gmmseg.from_pretrained(folder)
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "label_names": ["a", "B", "c"]}))
    assert gmmseg.from_pretrained(folder).calibration == calibration  # spelt otherwise is no other class


def test_files_of_the_format_before_are_read(folder, calibration):
    """As it was written before thresholds had promises."""
    path = folder / CALIBRATION_FILE
    tree = json.loads(path.read_text())
    tree["format"] = 1
    tree["thresholds"] = {"pixels": {"value": -1.5, "share": 0.05}, "images": {"value": 2.25, "share": 0.1}}
    del tree["false_alarms"]
    path.write_text(json.dumps(tree))
    assert gmmseg.from_pretrained(folder).calibration == calibration


def test_writing_it_leaves_weights_and_configuration_alone(folder, calibration):
    before = {name: (folder / name).read_bytes() for name in (WEIGHTS_FILE, CONFIG_FILE)}
    write_calibration(replace(calibration, temperature=2.0), folder)
    assert all((folder / name).read_bytes() == content for name, content in before.items())
    assert gmmseg.from_pretrained(folder).temperature == 2.0
    assert sorted(os.listdir(folder)) == sorted([*before, CALIBRATION_FILE, CARD_FILE])


def test_saving_without_one_removes_that_of_the_weights_before(folder, segmenter):
    segmenter.save_pretrained(folder)
    assert sorted(os.listdir(folder)) == sorted([CARD_FILE, CONFIG_FILE, WEIGHTS_FILE])


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
    ("thresholds", {"pixels": {"value": 1e300}}, "value must be at most"),
    ("quantiles", [[0.5, -1e300]], "quantiles must be at least"),
    ("moments", {"energy": {"mean": 10**200, "deviation": 1.0}}, "mean must be at most"),
    (
        "thresholds",
        {"promised": {"value": 1.0, "images": 60, "false_alarms": {"alpha": 0.001}}},
        "60 images cannot promise 0.001: that takes 999",
    ),
    ("false_alarms", {"pixel": {"images": 1, "levels": [2], "rates": [0.1]}}, "cannot promise a rate below"),
    ("thresholds", {"pixels": {"value": 1.0, "share": 5}}, "share must be at most 1"),
    ("thresholds", {"pixels": {"share": 0.05}}, "thresholds/pixels lacks value"),
    ("thresholds", {"pixels": {"value": 1.0, "more": 0}}, "thresholds/pixels holds unknown more"),
    ("temperature", 0, "temperature must be at least 1e-06"),
    ("temperature", 10**30, "temperature must be at most"),
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
    ("score", "fused", "the fused score needs the moments of energy and density"),
    ("moments", [], "moments must be an object"),
    ("moments", {"energy": 3.0}, "moments/energy must be an object"),
    ("moments", {"energy": {"mean": 0.0}}, "moments/energy lacks deviation"),
    ("moments", {"energy": {"mean": 0.0, "deviation": 0.0}}, "deviation must be more than 0"),
    ("moments", {"energy": {"mean": math.nan, "deviation": 1.0}}, "mean must be finite"),
    ("library", "other", "not a calibration of a gmmseg segmenter"),
    ("format", 99, "format 99, this version of gmmseg reads formats 1 and 2"),
    ("format", True, "format True"),
    ("surprise", 1, "it holds unknown surprise"),
    ("score", "energy", "is of the score 'energy', this model shows anomaly_map"),
    ("false_alarms", [], "false_alarms must be an object"),
    ("false_alarms", {"pixel": {"images": 3}}, "false_alarms/pixel lacks levels, rates"),
    ("false_alarms", {"pixel": {"images": 3, "levels": [2, 1], "rates": [1, 1]}}, "levels must rise"),
    ("thresholds", {"promised": {"value": 1.0, "images": 3}}, "images a promise"),
    ("thresholds", {"promised": {"value": 1.0, "images": 3, "false_alarms": 1}}, "must be an object"),
    ("thresholds", {"promised": {"value": 1.0, "images": 3, "false_alarms": {"alpha": 2}}}, "alpha must be"),
    ("thresholds", {"promised": {"value": 1.0, "by_class": [1.0]}}, "by_class has 1 entries for 3 classes"),
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
