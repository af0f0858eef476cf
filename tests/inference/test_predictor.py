import copy
import dataclasses
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg.inference import Predictor, whole
from gmmseg.inference.predictor import at_short_side
from gmmseg.inference.windows import anomaly_map, upsample
from gmmseg.labels import IGNORE
from gmmseg.models import InferenceSettings
from gmmseg.samples import Sample


def test_prediction_is_worked_out_by_hand(segmenter):
    image = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).T[:, None, :]  # a red and a black pixel
    prediction = Predictor(segmenter).predict(image)
    evidence = -10 * torch.tensor([[0.0, 1.0], [2.0, 1.0], [2.0, 1.0]])
    torch.testing.assert_close(prediction.posterior[:, 0], (2 * evidence).softmax(0))
    torch.testing.assert_close(prediction.anomaly, torch.tensor([[0.0, 10.0]]))
    assert prediction.labels[0, 0] == 0
    assert prediction.above(5.0).tolist() == [[False, True]]
    said = (prediction.threshold, prediction.promise, prediction.p_values, prediction.unknown)
    assert (*said, prediction.unknown_by_class) == (None,) * 5
    torch.testing.assert_close(prediction.confidence, prediction.posterior.amax(0))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_place_of_a_segmenter_is_refused_with_the_way_to_one(kind):
    with pytest.raises(TypeError, match=r'gmmseg\.from_pretrained\("runs/mine/best"\)'):
        Predictor(kind("runs/mine/best"))


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (37, 53), (64, 64)])
def test_windows_and_whole_agree_at_the_image_s_own_size(make_segmenter, generator, size):
    image = torch.rand(3, *size, generator=generator)
    at_once = Predictor(make_segmenter()).predict(image)
    windows = Predictor(make_segmenter(), window=16, stride=10).predict(image)
    assert at_once.labels.shape == at_once.anomaly.shape == size
    assert at_once.labels.dtype == torch.uint8
    torch.testing.assert_close(at_once.posterior, windows.posterior)
    torch.testing.assert_close(at_once.posterior.sum(0), torch.ones(size))
    torch.testing.assert_close(at_once.anomaly, windows.anomaly)
    assert torch.equal(at_once.labels, at_once.posterior.argmax(0).to(torch.uint8))


def test_large_images_go_through_windows_unless_told_otherwise(make_segmenter):
    image = torch.rand(3, 40, 2049)
    automatic, told = make_segmenter(), make_segmenter()
    first = Predictor(automatic).predict(image)
    second = Predictor(told, whole_up_to=4000).predict(image)
    assert set(automatic.sizes) == {(40, 1024)}
    assert told.sizes == [(40, 2049)]
    torch.testing.assert_close(first.anomaly, second.anomaly)


def test_an_8k_wide_image_is_predicted_through_windows(make_segmenter):
    segmenter = make_segmenter(stride=4)
    image = torch.zeros(3, 96, 8192)
    image[0, :, 4096:] = 1.0
    prediction = Predictor(segmenter, window=256).predict(image)
    assert prediction.labels.shape == (96, 8192)
    torch.testing.assert_close(prediction.anomaly[:, :4000], torch.full((96, 4000), 10.0))
    torch.testing.assert_close(prediction.anomaly[:, 4200:], torch.zeros(96, 3992))
    assert set(segmenter.sizes) == {(96, 256)}


def test_the_source_does_not_matter(segmenter, tmp_path, generator):
    values = torch.randint(0, 256, (9, 11, 3), generator=generator, dtype=torch.uint8).numpy()
    Image.fromarray(values).save(tmp_path / "image.png")
    sources = [tmp_path / "image.png", str(tmp_path / "image.png"), Image.fromarray(values), values]
    sources.append(torch.from_numpy(values).movedim(-1, 0))
    first, *rest = [Predictor(segmenter).predict(source).anomaly for source in sources]
    assert all(torch.equal(first, other) for other in rest)


def test_the_segmenter_is_left_as_it_was_and_predicts_in_evaluation_mode(segmenter):
    segmenter.train()
    segmenter.dropout.eval()
    predictor = Predictor(segmenter)
    first, second = (predictor.predict(np.full((4, 4, 3), 99, np.uint8)) for _ in range(2))
    assert segmenter.training
    assert not segmenter.dropout.training
    assert torch.equal(first.anomaly, second.anomaly)


def test_a_prediction_is_ordinary_tensors(segmenter):
    prediction = Predictor(segmenter).predict(torch.rand(3, 4, 4))
    for values in (prediction.labels, prediction.posterior, prediction.anomaly):
        assert not values.is_inference()
        assert not values.requires_grad
        values += 1


def sample_of(image):
    """A sample of pixels (3 h w) without labels that matter."""
    return Sample(image, torch.zeros(image.shape[-2:], dtype=torch.uint8), "x")


def test_maps_of_a_sample_are_those_of_the_windows_at_label_size(segmenter, generator):
    image = torch.randint(0, 256, (3, 40, 60), generator=generator, dtype=torch.uint8)
    pixels = image.float()[None] / 255
    at_once = whole(segmenter, pixels)
    half = whole(segmenter, at_short_side(pixels, 20)).map(lambda maps: upsample(maps, (40, 60)))
    for size, expected in ((None, at_once), (20, half)):
        for window in (None, 8):
            predictor = Predictor(segmenter, short_side=size, window=window)
            maps = predictor.maps(sample_of(image))
            torch.testing.assert_close(maps.logits, expected.logits)
            torch.testing.assert_close(maps.scores, expected.scores)
            torch.testing.assert_close(predictor.scores(sample_of(image), [anomaly_map]), expected.scores)


def test_strides_without_a_window_or_beyond_it_are_refused(segmenter):
    with pytest.raises(ValueError, match="needs a window"):
        Predictor(segmenter, stride=4)
    with pytest.raises(ValueError, match="stride 9 must be between 1 and the window size 8"):
        Predictor(segmenter, window=8, stride=9)
    with pytest.raises(ValueError, match="window must be at least 0, got -1"):
        Predictor(segmenter, window=-1)


@pytest.mark.parametrize(
    ("name", "head"), [("tiny_unet", "gmm"), ("tiny_unet", "softmax"), ("segformer_mit_b0", "gmm")]
)
@pytest.mark.parametrize("size", [(1, 1), (35, 50)])
def test_a_real_segmenter_predicts_odd_sizes(name, head, size, generator):
    segmenter = gmmseg.build(name, num_classes=4, head=head)
    image = torch.rand(3, *size, generator=generator)
    prediction = Predictor(segmenter).predict(image)
    assert prediction.posterior.shape == (4, *size)
    torch.testing.assert_close(prediction.posterior.sum(0), torch.ones(size))
    assert prediction.anomaly.isfinite().all()
    assert segmenter.training
    windows = Predictor(segmenter, window=64).predict(image)
    assert windows.posterior.shape == (4, *size)


def test_mixtures_that_nobody_has_fitted_are_not_shown_without_a_word():
    segmenter = gmmseg.build("tiny_unet", num_classes=3)
    with pytest.warns(UserWarning, match="never been fitted"):
        Predictor(segmenter)
    segmenter.mixture.variances[0] *= 0.5  # what any step of EM does
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictor(segmenter)
        Predictor(gmmseg.build("tiny_unet", num_classes=3, head="softmax"))


def test_long_and_thin_images_cost_what_they_hold(make_segmenter):
    segmenter = make_segmenter(stride=4)
    for size in ((10, 30_000), (30_000, 10)):
        assert Predictor(segmenter).predict(torch.zeros(3, *size)).labels.shape == size
    seen = sum(height * width for height, width in segmenter.sizes)
    assert seen < 2 * 1.5 * 30_000 * 32


def test_how_to_look_at_an_image_is_the_model_s_unless_told(make_segmenter, generator):
    image = torch.rand(3, 60, 90, generator=generator)
    segmenter = make_segmenter()
    segmenter.inference = InferenceSettings(short_side=40, window=32, stride=20)
    prediction = Predictor(segmenter).predict(image)
    assert prediction.labels.shape == (60, 90)
    assert set(segmenter.sizes) == {(32, 32)}
    assert len(segmenter.sizes) == 2 * 3
    small = at_short_side(image[None], 40)
    expected = whole(segmenter, small).map(lambda maps: upsample(maps, (60, 90)))
    torch.testing.assert_close(prediction.anomaly, expected.anomaly[0])
    segmenter.sizes.clear()
    Predictor(segmenter, short_side=0, window=0).predict(image)
    assert segmenter.sizes == [(60, 90)]
    segmenter.sizes.clear()
    Predictor(segmenter, short_side=50, window=64).predict(image)
    assert set(segmenter.sizes) == {(50, 64)}
    assert len(segmenter.sizes) == 2, "another window has a stride of its own"


def test_the_shorter_side_keeps_the_aspect_and_makes_no_giants():
    sizes = {(60, 90): (40, 60), (20, 160): (40, 320), (2, 900): (2, 900), (10, 200): (16, 320)}
    for size, seen in sizes.items():
        assert at_short_side(torch.rand(1, 3, *size), 40).shape[-2:] == seen
    assert at_short_side(torch.rand(1, 3, 60, 9000), 40).shape[-2:] == (40, 6000)


def test_a_model_prepared_for_mixed_precision_is_left_alone_too():
    """accelerate puts its own forward on the module; the copy must call its own parts, not the original's."""
    segmenter = gmmseg.build("tiny_unet", num_classes=3, head="softmax").train()
    wrapped = torch.autocast("cpu", torch.bfloat16)(type(segmenter).forward)
    segmenter.forward = MethodType(wrapped, segmenter)
    state = {name: value.clone() for name, value in segmenter.state_dict().items()}
    first, second = (Predictor(segmenter).predict(torch.full((3, 32, 32), 0.5)).anomaly for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(state[name], value) for name, value in segmenter.state_dict().items())


def test_large_outputs_come_in_strips_and_are_the_same(make_segmenter, monkeypatch, generator):
    segmenter = make_segmenter()
    image = torch.rand(3, 60, 90, generator=generator)
    at_once = Predictor(segmenter, short_side=30).predict(image)
    monkeypatch.setattr("gmmseg.inference.windows.STRIP_PIXELS", 900)
    predictor = Predictor(segmenter, short_side=30)
    assert len(list(predictor.strips(image))) == 6
    torch.testing.assert_close(predictor.predict(image).posterior, at_once.posterior)


def test_outputs_are_what_the_predictor_sees_with_labels_where_it_says_it(make_segmenter):
    segmenter = make_segmenter(stride=4)
    labels = torch.zeros(1, 45, 90, dtype=torch.int64)
    labels[:, :, 45:] = 2
    images = (labels == 2)[:, None].float().repeat(1, 3, 1, 1)
    windows = Predictor(segmenter, window=32, short_side=40)
    for predictor, count in ((Predictor(segmenter), 1), (windows, 2 * 3)):
        pairs = list(predictor.outputs(Sample(images[0], labels[0], "x")))
        assert len(pairs) == count
        for output, known in pairs:
            assert known.shape[-2] == 4 * output.points.shape[-2]
            cells = known[:, 2::4, 2::4]
            inside = cells != IGNORE
            wrong = (output.points[:, 0] > 0.5) != (cells == 2)
            assert wrong[inside].float().mean() < 0.08, "all but cells on the line between both"
            assert inside.float().mean() > 0.2


def test_threads_on_a_model_in_training_mode_agree_and_leave_it_alone():
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=4, head="softmax").train()
    images = [torch.rand(3, 32 + 4 * i, 40) for i in range(8)]
    twin = copy.deepcopy(segmenter).eval()
    expected = [Predictor(twin).predict(image).posterior for image in images]
    state = {name: value.clone() for name, value in segmenter.state_dict().items()}
    predictor = Predictor(segmenter)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            found = list(pool.map(lambda image: predictor.predict(image).posterior, images))
            assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert all(part.training for part in segmenter.modules())
    assert all(torch.equal(state[name], value) for name, value in segmenter.state_dict().items())


def test_a_predictor_sees_what_is_trained_after_it_was_made(calibration):
    segmenter = gmmseg.build("tiny_unet", num_classes=4, head="softmax").train()
    predictor, image = Predictor(segmenter), torch.rand(3, 32, 32)
    before = predictor.predict(image).posterior
    with torch.no_grad():
        for value in segmenter.parameters():
            value.add_(0.1 * torch.randn_like(value))
    segmenter(torch.rand(2, 3, 32, 32))  # batch-norm statistics move
    segmenter.calibration = calibration(temperature=2.0)
    after = predictor.predict(image).posterior
    assert not torch.allclose(before, after)
    assert torch.equal(after, Predictor(copy.deepcopy(segmenter).eval()).predict(image).posterior)


def test_an_anomaly_that_is_no_number_is_never_shown(segmenter, monkeypatch):
    monkeypatch.setattr(segmenter, "forward", lambda images, run=segmenter.forward: nan_evidence(run(images)))
    with pytest.raises(ValueError, match=r"NaN.*train again"):
        Predictor(segmenter).predict(torch.rand(3, 32, 32))


def nan_evidence(output):
    return dataclasses.replace(output, evidence=output.evidence * torch.nan)
