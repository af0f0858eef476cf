import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gmmseg
from gmmseg.evaluation import CalibrationError
from gmmseg.inference import FalseAlarms, Predictor, calibrate
from gmmseg.inference.calibrating import SHARES, FalseAlarmCounts, MomentsFit, TemperatureFit, _evenly
from gmmseg.inference.image_losses import alarm_level
from gmmseg.inference.readings import Fused
from gmmseg.labels import IGNORE, LabelSpace
from gmmseg.models import Segmenter
from gmmseg.models.calibration_file import (
    FUSED,
    FUSED_PARTS,
    PIXELS,
    CalibrationData,
    calibration_of,
    calibration_tree,
)
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.false_alarms import Promise, TooFewImages
from gmmseg.models.saving import digest
from gmmseg.samples import Sample


def drawn_labels(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Labels (n) drawn from the posterior of logits (n c)."""
    return torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("factor", [0.4, 0.8, 1.0, 1.7, 5.0, 50.0])
def test_overconfidence_by_a_known_factor_is_found(generator: torch.Generator, factor: float) -> None:
    logits = 3 * torch.randn(20_000, 6, generator=generator)
    labels = drawn_labels(logits, generator)
    fit = TemperatureFit()
    for part in (slice(0, 7000), slice(7000, None)):
        fit.update(factor * logits[part], labels[part])
    assert fit.best() == pytest.approx(factor, rel=0.04)


def test_it_is_where_a_gradient_vanishes(generator: torch.Generator) -> None:
    """An oracle: a solver on the same loss."""
    logits = 2 * torch.randn(3000, 4, generator=generator)
    labels = torch.where(torch.rand(3000, generator=generator) < 0.7, logits.argmax(1), 0)
    fit = TemperatureFit()
    fit.update(logits, labels)
    inverse = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([inverse], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(inverse * logits.double(), labels)
        value.backward()
        return value

    solver.step(loss)
    assert fit.best() == pytest.approx(1 / inverse.item(), rel=2e-3)


def test_ends_of_the_range_are_kept_and_told(generator: torch.Generator) -> None:
    assert TemperatureFit().best() == 1.0
    logits = torch.randn(500, 3, generator=generator)
    for labels, end, told in (
        (logits.argmax(1), 0.125, "0.125 is the lowest"),
        (logits.argmin(1), 256.0, "256 is the highest"),
    ):
        fit = TemperatureFit()
        fit.update(logits, labels)
        with pytest.warns(UserWarning, match=told):
            assert fit.best() == pytest.approx(end)


def noisy_samples(predictor: Predictor, generator: torch.Generator, count: int = 6) -> list[Sample]:
    """Images whose labels are drawn from the predictor's posterior, half as sure; a strip is ignored."""
    samples = []
    for _ in range(count):
        image = torch.randint(0, 256, (3, 40, 40), generator=generator, dtype=torch.uint8)
        unlabelled = Sample(image, torch.zeros(40, 40, dtype=torch.uint8), "drawn")
        logits = predictor.maps(unlabelled).logits[0].flatten(1).T
        labels = drawn_labels(logits / 2, generator).view(40, 40).to(torch.uint8)
        labels[:5] = IGNORE
        samples.append(Sample(image, labels, "drawn"))
    return samples


def test_the_posterior_becomes_calibrated_and_nothing_else_changes(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples, unseen = (noisy_samples(predictor, generator) for _ in range(2))
    found = calibrate(predictor, listed(samples))
    assert found.temperature == pytest.approx(2.0, rel=0.05)
    errors, maps = [], []
    for _ in range(2):
        error = CalibrationError()
        for sample in unseen:
            error.update(predictor.maps(sample).posterior, sample.labels[None].long())
        errors.append(error.compute()["ece"].item())
        maps.append(predictor.predict(unseen[0].image))
        segmenter.calibration = found
    assert errors[1] < 0.015 < 0.04 < errors[0]
    assert torch.equal(maps[0].labels, maps[1].labels)
    assert torch.equal(maps[0].anomaly, maps[1].anomaly)


def test_typical_evidence_is_the_mean_over_a_class_s_own_pixels(segmenter, listed, generator) -> None:
    image = torch.randint(0, 256, (3, 30, 30), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 2, (30, 30), generator=generator).to(torch.uint8)  # never the third class
    labels[:4] = IGNORE
    predictor = Predictor(segmenter)
    typical = calibrate(predictor, listed([Sample(image, labels, "x")])).typical
    with torch.no_grad():
        evidence = segmenter.eval()(image.float()[None] / 255).evidence[0]
    expected = [evidence[c][labels == c].mean().item() for c in range(2)]
    assert typical == pytest.approx([*expected, sum(expected) / 2], rel=1e-5)


@pytest.mark.parametrize("total", [1, 2, 1999, 2000, 2001, 16_777_220, 36_000_000])
def test_pixels_are_spread_evenly_however_many_there_are(total: int) -> None:
    index = _evenly(total, 2000)
    assert len(index) == min(total, 2000)
    assert index[0] == 0
    assert index[-1] == total - 1
    assert total == 1 or int(index.diff().min()) >= 1
    assert total == 1 or int(index.diff().max() - index.diff().min()) <= 1


def test_a_softmax_model_has_none(make_segmenter, listed, generator) -> None:
    predictor = Predictor(make_segmenter(generative=False))
    assert calibrate(predictor, listed(noisy_samples(predictor, generator, 1))).typical is None


def test_windows_are_divided_once(make_segmenter, calibration, generator) -> None:
    segmenter = make_segmenter()
    segmenter.calibration = calibration(temperature=3.0)
    pixels = torch.rand(3, 50, 70, generator=generator)
    image = Sample(pixels, torch.zeros(50, 70, dtype=torch.uint8), "x")
    at_once, windowed = (Predictor(segmenter, window=window).maps(image).logits for window in (None, 24))
    torch.testing.assert_close(windowed, at_once, atol=1e-5, rtol=1e-5)


def test_a_second_calibration_finds_what_the_first_found(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = listed(noisy_samples(predictor, generator))
    once = segmenter.calibration = calibrate(predictor, samples)
    again = calibrate(predictor, samples)
    assert again.temperature == pytest.approx(once.temperature, rel=1e-4)
    for name in ("thresholds", "typical", "quantiles"):
        assert getattr(again, name) == getattr(once, name)


def test_an_earlier_temperature_does_not_widen_the_range(segmenter, calibration, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = listed(noisy_samples(predictor, generator, 1))
    worst = [replace(sample, labels=predictor.maps(sample).logits[0].argmin(0).byte()) for sample in samples]
    segmenter.calibration = calibration(temperature=256.0)
    with pytest.warns(UserWarning, match="256 is the highest"):
        assert calibrate(predictor, listed(worst)).temperature == pytest.approx(256.0)


def test_a_calibration_says_where_it_comes_from(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = listed(noisy_samples(predictor, generator, 2))
    seen = []
    found = calibrate(
        predictor, samples, false_alarms=FalseAlarms(0.4), progress=lambda *call: seen.append(call)
    )
    assert found.data == CalibrationData("listed", "val", ("red", "green", "blue"), 2)
    assert found.weights == digest(segmenter)
    assert found.time is not None
    assert found.time.endswith("+00:00")
    assert found.promise == Promise("pixel", 0.4, 2, 1, "listed/val")
    assert found.score == "anomaly_map"
    assert seen == [(1, 2, "drawn"), (2, 2, "drawn")]
    assert segmenter.calibration is None


def test_quantiles_are_those_of_the_scores_of_labelled_pixels(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = noisy_samples(predictor, generator)
    found = calibrate(predictor, listed(samples))
    scores = torch.cat([predictor.maps(each).anomaly[0][each.labels != IGNORE] for each in samples])
    assert [share for share, _ in found.quantiles] == list(SHARES)
    for share, score in found.quantiles:
        exceeding = (scores > score).double().mean().item()
        assert exceeding <= share
        assert exceeding == pytest.approx(share, abs=2e-3)
    assert dict(found.quantiles)[0.05] == found.threshold  # six images are too few for a promise


def known_scores(predictor: Predictor, samples: list[Sample]) -> list[Tensor]:
    return [predictor.maps(each).anomaly[0][each.labels != IGNORE] for each in samples]


def test_a_promise_per_pixel_is_the_smallest_threshold_that_keeps_it(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = noisy_samples(predictor, generator, 9)
    unlabelled = replace(samples[0], labels=torch.full_like(samples[0].labels, IGNORE))
    found = calibrate(predictor, listed([*samples, unlabelled]), false_alarms=FalseAlarms(0.2))
    assert found.promise == Promise("pixel", 0.2, 9, 1, "listed/val")  # one image is left out,
    assert found.data.images == 10  # and counted
    scores = known_scores(predictor, samples)

    def rate(threshold: float) -> float:
        return (1 + sum((each > threshold).double().mean().item() for each in scores)) / 10

    assert rate(found.threshold) <= 0.2 < rate(found.threshold - abs(found.threshold) / 4000)
    assert found.false_alarm_rate(found.threshold) == pytest.approx(rate(found.threshold), abs=1e-9)
    everything = torch.cat(scores)
    assert torch.equal(found.p_values(everything) <= 0.2, everything > found.threshold)
    for label, own in enumerate(found.class_thresholds()):
        parts = [(predictor.maps(each), each.labels != IGNORE) for each in samples]
        of_class = [maps.anomaly[0][known & (maps.logits[0].argmax(0) == label)] for maps, known in parts]
        shares = [(each > own).double().mean().item() for each in of_class if len(each)]
        assert (1 + sum(shares)) / (1 + len(shares)) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("min_area", [1, 3])
def test_a_promise_per_image_is_an_order_statistic_of_the_images(
    segmenter, listed, generator, min_area
) -> None:
    predictor = Predictor(segmenter)
    samples = noisy_samples(predictor, generator, 9)
    found = calibrate(predictor, listed(samples), false_alarms=FalseAlarms(0.3, "image", min_area))
    levels = sorted(
        alarm_level(predictor.maps(each).anomaly[0].numpy(), (each.labels != IGNORE).numpy(), min_area)
        for each in samples
    )
    assert found.threshold == levels[math.ceil(10 * 0.7) - 1]
    assert found.promise == Promise("image", 0.3, 9, min_area, "listed/val")
    assert found.false_alarms["image"].levels == tuple(levels)
    assert [found.false_alarm_rate(level, "image") for level in levels] == [k / 10 for k in range(9, 0, -1)]
    assert found.false_alarm_rate(found.threshold, "pixel") < 0.3


def test_too_few_images_are_refused_before_they_are_gone_through(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = listed(noisy_samples(predictor, generator, 3))
    seen: list[tuple] = []
    with pytest.raises(TooFewImages, match=r"0\.01 false alarms per image need at least 99 images .* are 3;"):
        calibrate(
            predictor,
            samples,
            false_alarms=FalseAlarms(0.01, "image"),
            progress=lambda *call: seen.append(call),
        )
    assert not seen
    samples[0].labels.fill_(IGNORE)
    with pytest.raises(TooFewImages, match="need at least 3 images with known pixels, there are 2"):
        calibrate(predictor, samples, false_alarms=FalseAlarms(0.25))


def test_a_least_area_that_the_images_do_not_have_is_refused(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    samples = listed(noisy_samples(predictor, generator, 9))
    whole = samples[0].labels.numel()
    for area in (whole + 1, 10**9):
        with pytest.raises(ValueError, match=rf"a region of {area} known pixels, .* smaller least area"):
            calibrate(predictor, samples, false_alarms=FalseAlarms(0.3, "image", area))


def test_where_nobody_asks_too_few_images_give_a_quantile_and_a_warning(segmenter, listed, generator) -> None:
    predictor = Predictor(segmenter)
    with pytest.warns(UserWarning, match="need at least 19 images .* there are 4; .* without a promise"):
        few = calibrate(predictor, listed(noisy_samples(predictor, generator, 4)))
    assert few.promise is None
    assert few.thresholds["pixels"].share == 0.05
    assert "no promise of a new image" in few.promise_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enough = calibrate(predictor, listed(noisy_samples(predictor, generator, 19)))
    assert enough.promise == Promise("pixel", 0.05, 19, 1, "listed/val")


class Infinite(Predictor):
    """All scores are infinite."""

    def maps(self, sample, readings=None):
        found = super().maps(sample, readings)
        return replace(found, scores=torch.full_like(found.scores, math.inf))


def test_a_score_that_is_infinite_gives_no_threshold_and_says_so(make_segmenter, listed) -> None:
    sample = Sample(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.uint8), "x")
    predictor, samples = Infinite(make_segmenter(generative=False)), listed([sample] * 20)
    with pytest.raises(ValueError, match=r"no threshold keeps 0\.1 false alarms per image"):
        calibrate(predictor, samples, false_alarms=FalseAlarms(0.1, "image"))
    with pytest.warns(UserWarning, match="score infinity .* until then there is no threshold"):
        found = calibrate(predictor, samples)
    assert found.threshold is None
    assert found.promise_text() == "is not known yet"


def test_a_set_of_the_same_classes_in_another_order_is_refused(segmenter, listed) -> None:
    sample = Sample(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.uint8), "x")
    segmenter.label_names = ("green", "red", "blue")
    with pytest.raises(ValueError, match=r"listed has the classes in another order \(green\): give labelled"):
        calibrate(Predictor(segmenter), listed([sample]))
    segmenter.label_names = ("a", "b", "c")
    with pytest.raises(ValueError, match="listed has other classes"):
        calibrate(Predictor(segmenter), listed([sample]))


def test_a_set_of_other_classes_of_none_or_without_images_is_refused(segmenter, listed) -> None:
    sample = Sample(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.uint8), "x")
    others = listed([sample])
    others.label_space = None
    with pytest.raises(ValueError, match="listed marks what is unknown"):
        calibrate(Predictor(segmenter), others)
    segmenter.num_classes = 4
    with pytest.raises(ValueError, match="listed has 3 classes, the model 4"):
        calibrate(Predictor(segmenter), listed([sample]))
    segmenter.num_classes = 3
    with pytest.raises(ValueError, match="listed, split val: there are no images"):
        calibrate(Predictor(segmenter), listed())


@pytest.fixture
def with_density() -> Segmenter:
    """A network with mixtures and a density that look fitted."""
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=4).eval()
    segmenter.mixture.means.copy_(
        segmenter.mixture.coordinates.valid_means(torch.randn_like(segmenter.mixture.means))
    )
    segmenter.mixture.variances.uniform_(0.05, 0.5)
    segmenter.density = CellDensity(4, DensitySettings(components=2, channels=16 + 32 + 64 + 96)).eval()
    segmenter.density.mixture.means.normal_()
    segmenter.density.mixture.variances.uniform_(0.5, 2)
    return segmenter


@pytest.fixture
def four_classes(listed):
    """Samples as a data set of the classes of `with_density`."""

    class FourClasses(listed):
        label_space = LabelSpace(("road", "sky", "tree", "car"), ((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)))

    return FourClasses


def of_four_classes(generator: torch.Generator, count: int) -> list[Sample]:
    return [
        Sample(
            torch.randint(0, 256, (3, 48, 64), generator=generator, dtype=torch.uint8) // (1 + index % 7),
            torch.randint(0, 4, (48, 64), generator=generator, dtype=torch.uint8),
            f"image {index}",
        )
        for index in range(count)
    ]


def test_images_that_weigh_the_fused_score_have_no_part_in_what_it_promises(
    with_density, four_classes, generator
) -> None:
    """Else the promise would be of images that the score is made to the measure of."""
    predictor, samples = Predictor(with_density), of_four_classes(generator, 12)
    found = calibrate(predictor, four_classes(samples), false_alarms=FalseAlarms(0.2, per="image"))
    weighing, others = samples[::5], [each for index, each in enumerate(samples) if index % 5]
    fit = MomentsFit(Fused.parts)
    for sample in weighing:
        for output, labels in predictor.outputs(sample):
            fit.update(output, labels)
    assert found.score == FUSED
    assert found.moments == fit.moments()
    assert tuple(found.moments) == FUSED_PARTS
    assert found.promise == Promise("image", 0.2, len(others), 1, "listed/val")
    assert found.data.images == 12
    fused = Fused(fit.moments())
    largest = sorted(float(predictor.scores(each, (fused,)).max()) for each in others)
    rank = math.ceil((len(others) + 1) * (1 - 0.2) - 1e-9)
    assert found.threshold == pytest.approx(largest[rank - 1], rel=1e-5)
    # What others look like moves the threshold and nothing that the score is made of.
    strange = [replace(each, image=255 - each.image) if i % 5 else each for i, each in enumerate(samples)]
    again = calibrate(predictor, four_classes(strange), false_alarms=FalseAlarms(0.2, per="image"))
    assert again.moments == found.moments
    assert again.threshold != found.threshold


@pytest.mark.parametrize("count", [1, 2])
def test_one_image_or_two_give_a_fused_score_its_weights_and_a_threshold_without_a_promise(
    with_density, four_classes, generator, count
) -> None:
    with pytest.warns(UserWarning, match=r"until then 5 % of all their pixels together"):
        found = calibrate(with_density, four_classes(of_four_classes(generator, count)))
    assert (found.score, found.promise) == (FUSED, None)
    assert set(found.thresholds) == {PIXELS}
    assert calibration_of(json.loads(json.dumps(calibration_tree(found)))) == found
    assert bool(found.image_statistics) == (count == 2), "the first image had a say in the score"


def test_where_no_image_that_would_weigh_is_labelled_the_next_ones_do(
    with_density, four_classes, generator
) -> None:
    samples = of_four_classes(generator, 11)
    for index in (0, 5, 10):
        samples[index] = replace(samples[index], labels=torch.full((48, 64), IGNORE, dtype=torch.uint8))
    found = calibrate(with_density, four_classes(samples), false_alarms=FalseAlarms(0.2))
    fit, predictor = MomentsFit(Fused.parts), Predictor(with_density)
    for sample in samples[1::5]:
        for output, labels in predictor.outputs(sample):
            fit.update(output, labels)
    assert found.moments == fit.moments()
    assert found.promise.images == 11 - 3 - 2
    with pytest.raises(ValueError, match="no known cells to weigh"):
        calibrate(with_density, four_classes([samples[0]] * 3))


def test_with_a_fused_score_a_promise_needs_a_quarter_more_images(
    with_density, four_classes, generator
) -> None:
    samples = four_classes(of_four_classes(generator, 6) * 4)
    assert calibrate(with_density, samples, false_alarms=FalseAlarms(0.05)).promise.images == 19
    samples.pop()
    with pytest.raises(TooFewImages, match=r"there are 18 beside 5 that weigh .* give 24 images in all"):
        calibrate(with_density, samples, false_alarms=FalseAlarms(0.05))


def test_a_class_that_no_image_holds_in_a_large_region_takes_the_common_threshold() -> None:
    counts, known = FalseAlarmCounts(min_area=6), torch.ones(4, 4, dtype=torch.bool)
    predicted = torch.zeros(4, 4, dtype=torch.int64)
    predicted[0, :3] = 1  # three pixels of it in every image
    for number in range(19):
        counts.update(torch.full((4, 4), float(number)), predicted, known)
    found = counts.threshold(FalseAlarms(0.05, per="image", min_area=6), 2)
    assert found.value == 18
    assert found.by_class == (18, None)
