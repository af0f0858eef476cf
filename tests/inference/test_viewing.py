"""What a person looks at is what `Predictor.predict` says."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg.data import Scenes
from gmmseg.inference import FalseAlarms, Predictor, calibrate
from gmmseg.inference.pixel_evidence import pixel_evidence
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
    assert np.array_equal(seen.unknown(wanted.threshold), wanted.unknown)
    assert not seen.unknown(None).any()
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
    assert about["false_alarm_rate_per_pixel"] == seen.calibration.false_alarm_rate(threshold)
    assert sum(about["share_of_pixels"]) == pytest.approx(1)
    assert about["weights"] == seen.calibration.weights


def test_the_evidence_is_that_of_the_networks_cell(predictor):
    pixels = SCENES[5].image[:, :39, :55] / 255
    network = predictor.network
    padded = torch.nn.functional.pad(pixels[None], (0, 9, 0, 25), mode="replicate")  # 39x55 -> 64x64
    with torch.no_grad():
        output = network(padded)
    cells = output.logits.shape[-1]
    x, y = 50, 17
    row, column = y * cells // 64, x * cells // 64
    found = pixel_evidence(predictor, pixels, x, y)
    wanted = (output.logits if output.evidence is None else output.evidence)[0, :, row, column]
    assert np.allclose(found.evidence, wanted, atol=1e-4)
    assert np.allclose(
        found.posterior, (output.logits[0, :, row, column] / network.temperature).softmax(0), atol=1e-5
    )
    assert found.nearest == int(wanted.argmax())
    assert found.generative == (network.mixture is not None) == (found.component is not None)
    if network.mixture is not None:
        point = output.points[0, :, row, column]
        each = [
            float(network.mixture.log_density(point[None])[0, found.nearest, k])
            + float(network.mixture.log_weights[found.nearest, k])
            for k in range(network.mixture.num_components)
        ]
        assert found.component == int(np.argmax(each))


def test_a_pixel_of_an_image_in_windows_is_looked_at_in_one_of_them(predictor):
    narrow = Predictor(predictor.segmenter, window=32, stride=32)
    pixels = SCENES[5].image / 255
    found = pixel_evidence(narrow, pixels, 50, 17)
    same = pixel_evidence(predictor, pixels[:, 1:33, 24:56], 26, 16)
    assert np.allclose(found.evidence, same.evidence, atol=1e-4)


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
