"""An explanation says what prediction says: same posterior, same score, the component of the cell."""

import pytest
import torch

import gmmseg
from gmmseg.inference import Predictor, explain
from gmmseg.models import HeadSettings, InferenceSettings
from gmmseg.models.exemplars import Exemplar
from gmmseg.samples import Sample

NAMES = ("road", "sky", "car")


def made(head=None):
    torch.manual_seed(0)
    model = gmmseg.build(
        "tiny_unet", class_names=NAMES, head=head or HeadSettings(components=3, dim=8)
    ).eval()
    model.label_names = NAMES
    if model.mixture is not None:
        model.mixture.variances.copy_(torch.rand_like(model.mixture.variances) * 0.1 + 0.05)
    return model


VIEWS = {
    "whole": InferenceSettings(),
    "resized": InferenceSettings(short_side=48),
    "windows": InferenceSettings(window=48, stride=32),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("head", [None, "softmax"])
@pytest.mark.parametrize("place", [(0, 0), (70, 12), (89, 60)])
def test_posterior_and_score_are_those_of_the_prediction(view, head, place, generator):
    model = made(head)
    model.inference = VIEWS[view]
    predictor, pixels = Predictor(model), torch.rand(3, 61, 90, generator=generator)
    predicted = predictor.predict(pixels)
    x, y = place
    found = explain(predictor, pixels, x, y)
    torch.testing.assert_close(torch.tensor(found.posterior), predicted.posterior[:, y, x])
    torch.testing.assert_close(found.anomaly, float(predicted.anomaly[y, x]))
    assert found.label == int(predicted.labels[y, x])
    assert found.names == NAMES
    assert found.nearest == max(range(3), key=lambda each: found.evidence[each])
    assert found.generative == (head is None)
    assert (found.component is None) == (head == "softmax")
    if view == "whole":  # else the score is the mean of several, or was resized with the rest
        torch.testing.assert_close(-max(found.evidence), found.anomaly, rtol=0.2, atol=2.0)


def test_the_evidence_is_interpolated_between_cells_as_in_prediction(generator):
    model = made()
    predictor, pixels = Predictor(model), torch.rand(3, 64, 96, generator=generator)
    with torch.no_grad():
        evidence = model(pixels[None]).evidence
    wanted = torch.nn.functional.interpolate(evidence, (64, 96), mode="bilinear", align_corners=False)
    for x, y in ((0, 0), (50, 17), (95, 63)):
        found = explain(predictor, pixels, x, y)
        torch.testing.assert_close(torch.tensor(found.evidence), wanted[0, :, y, x], rtol=1e-3, atol=1e-3)


def test_the_component_is_that_of_the_cell(generator):
    model = made()
    predictor, pixels = Predictor(model), torch.rand(3, 64, 96, generator=generator)
    with torch.no_grad():
        output = model(pixels[None])
    stride = 64 // output.logits.shape[-2]
    for row, column in ((0, 0), (3, 5), (output.logits.shape[-2] - 1, output.logits.shape[-1] - 1)):
        x, y = column * stride + stride // 2, row * stride + stride // 2
        found = explain(predictor, pixels, x, y)
        densities = (
            output.log_densities[0, found.label, :, row, column] + model.mixture.log_weights[found.label]
        )
        torch.testing.assert_close(
            torch.tensor(found.component_shares), densities.softmax(0), rtol=1e-3, atol=1e-4
        )
        assert found.component == int(densities.argmax())


def test_cells_and_pixels_belong_together():
    """The middle of a cell lies in that cell, in every window of an image that was resized."""
    model = made()
    model.inference = InferenceSettings(short_side=40, window=32, stride=24)
    image = torch.zeros(3, 61, 90, dtype=torch.uint8)
    views = list(Predictor(model).views(Sample(image, torch.zeros(61, 90, dtype=torch.uint8), "x")))
    assert len(views) > 2
    for view in views:
        rows, columns = view.output.logits.shape[-2:]
        for row, column in ((0, 0), (rows - 1, columns - 1), (rows // 2, 1)):
            x, y = view.pixel(row, column)
            assert view.cell(x, y) == (row, column)


def test_exemplars_are_those_of_the_winning_component(generator):
    predictor, pixels = Predictor(made()), torch.rand(3, 64, 96, generator=generator)
    every = [Exemplar(c, k, "a", 0, 0, 1.0, b"\xff\xd8\xff") for c in range(3) for k in range(3)]
    found = explain(predictor, pixels, 5, 5, every)
    assert [(each.label, each.component) for each in found.exemplars] == [(found.label, found.component)]


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (96, 0), (0, 64), (10**9, 5)])
def test_a_pixel_outside_the_image_is_refused(place):
    with pytest.raises(ValueError, match=r"outside the image of 96x64: x is 0 to 95, y is 0 to 63"):
        explain(Predictor(made()), torch.rand(3, 64, 96), *place)


@pytest.mark.parametrize("min_area", [1, 40])
def test_unknown_and_p_value_are_those_of_the_prediction(promised, min_area, generator):
    """Also where small regions are no alarm: a pixel above the threshold is then still known."""
    model, pixels = made(), torch.rand(3, 64, 96, generator=generator)
    threshold = float(Predictor(model).predict(pixels).anomaly.quantile(0.97))
    model.calibration = promised(threshold, min_area)
    predictor = Predictor(model)
    predicted = predictor.predict(pixels)
    above = predicted.anomaly > threshold
    places = [(above & predicted.unknown), (above & ~predicted.unknown), ~above]
    assert [bool(each.any()) for each in places] == [True, min_area > 1, True]
    for each in places:
        for y, x in each.nonzero()[:2].tolist():
            found = explain(predictor, pixels, x, y)
            assert found.unknown == bool(predicted.unknown[y, x])
            assert found.p_value == float(predicted.p_values[y, x])


def test_an_unknown_pixel_is_called_so(calibration):
    model, pixels = made(), torch.rand(3, 64, 96)
    assert explain(Predictor(model), pixels, 3, 3).unknown is None
    score = explain(Predictor(model), pixels, 3, 3).anomaly
    model.calibration = calibration(threshold=score - 1)
    assert explain(Predictor(model), pixels, 3, 3).unknown is True
    model.calibration = calibration(threshold=score + 1)
    assert explain(Predictor(model), pixels, 3, 3).unknown is False


def test_of_another_score_no_threshold_and_no_p_value_are_known(promised):
    model, pixels = made(), torch.rand(3, 64, 96)
    model.calibration = promised()
    found = explain(Predictor(model, score="entropy"), pixels, 3, 3)
    assert 0 <= found.anomaly <= 1.1, "the entropy of three classes"
    assert (found.threshold, found.unknown, found.p_value) == (None, None, None)
