"""What a person looks at is what `Predictor.predict` says."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg.data import Scenes
from gmmseg.inference import FalseAlarms, Predictor, calibrate
from gmmseg.inference.pictures import overlay
from gmmseg.inference.viewing import NARROWEST, WIDEST, archive, for_screen, marked, panels, pixel_at, view
from gmmseg.mixture import PRESETS, OnlineEM

SCENES = Scenes("val", size=(40, 56), length=19)


@pytest.fixture(scope="module", params=["softmax", "gmm"])
def predictor(request):
    torch.manual_seed(0)
    preset = "softmax" if request.param == "softmax" else "default"
    model = gmmseg.build("tiny_unet", num_classes=10, preset=preset)
    if model.mixture is not None:
        em = OnlineEM(model.mixture, PRESETS["default"])
        sample = SCENES[0]
        with torch.no_grad():
            em.step(*model.em_points(model(sample.image[None] / 255), sample.labels[None].long()))
    predictor = Predictor(model.eval())
    model.calibration = calibrate(predictor, SCENES, false_alarms=FalseAlarms(0.1))
    return predictor


def test_the_maps_are_those_of_a_prediction(predictor):
    pixels = SCENES[3].image / 255
    seen, wanted = view(predictor, pixels), predictor.predict(pixels)
    assert np.array_equal(seen.labels, wanted.labels)
    assert np.array_equal(seen.confidence, wanted.confidence)
    assert np.array_equal(seen.anomaly, wanted.anomaly)
    assert np.array_equal(seen.above(wanted.threshold), wanted.unknown)
    assert not seen.above(None).any()
    assert np.array_equal(seen.photograph, SCENES[3].image.movedim(0, -1))
    assert {picture.size for picture in panels(seen).values()} == {for_screen(Image.new("L", (56, 40))).size}


def test_the_archive_holds_what_is_shown(predictor):
    seen = view(predictor, SCENES[3].image / 255)
    threshold = float(np.quantile(seen.anomaly, 0.9))
    with zipfile.ZipFile(io.BytesIO(archive({"a": seen}, {"a": threshold}))) as file:
        assert np.array_equal(Image.open(file.open("a/labels.png")), seen.labels)
        assert np.array_equal(
            np.asarray(Image.open(file.open("a/unknown.png"))) > 0, seen.anomaly > threshold
        )
        assert np.array_equal(Image.open(file.open("a/image.png")), seen.photograph)
        about = json.loads(file.read("results.json"))["a"]
    assert about["threshold"] == threshold
    assert about["false_alarm_rate_per_pixel"] == seen.meaning.calibration.false_alarm_rate(threshold)
    assert sum(about["share_of_pixels"]) == pytest.approx(1)
    assert about["weights"] == seen.meaning.calibration.weights


def test_where_the_slider_has_no_threshold_the_archive_shows_nothing_unknown(predictor):
    seen = view(predictor, SCENES[3].image / 255)
    meaning = seen.meaning.with_threshold(float(np.median(seen.anomaly)))
    seen = replace(seen, meaning=meaning)
    plain = overlay(seen.photograph, seen.labels, seen.meaning.colours)
    with zipfile.ZipFile(io.BytesIO(archive({"a": seen}, {"a": None}))) as file:
        assert np.array_equal(Image.open(file.open("a/overlay.png")), plain)
        assert not np.asarray(Image.open(file.open("a/unknown.png"))).any()


def test_places_on_a_picture_are_pixels_of_the_image():
    for size in ((56, 40), (2000, 1000), (1024, 7), (1, 1)):
        shown = for_screen(Image.new("RGB", size)).size
        assert max(shown) <= WIDEST
        assert max(shown) >= NARROWEST
        assert pixel_at(size, shown, (0, 0)) == (0, 0)
        assert pixel_at(size, shown, (shown[0] - 1, shown[1] - 1)) == pytest.approx(
            (size[0] - 1, size[1] - 1), abs=1
        )
        assert pixel_at(size, shown, (99999, -5)) == (size[0] - 1, 0)


def test_a_ring_leaves_its_pixel_free():
    photograph = np.full((40, 56, 3), 90, np.uint8)
    picture = np.asarray(marked(photograph, 30, 20))
    scale = picture.shape[1] / 56
    assert (picture[round(20.5 * scale), round(30.5 * scale)] == 90).all()
    assert (picture != 90).any()
