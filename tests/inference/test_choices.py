from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.evaluation import CalibrationError
from gmmseg.inference import Predictor, choose
from gmmseg.inference.choices import TemperatureFit, _evenly
from gmmseg.labels import IGNORE


@dataclass(frozen=True)
class Sample:
    image: Tensor
    labels: Tensor


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
        logits = predictor.maps(image.float()[None] / 255).logits[0].flatten(1).T
        labels = drawn_labels(logits / 2, generator).view(40, 40).to(torch.uint8)
        labels[:5] = IGNORE
        samples.append(Sample(image, labels))
    return samples


def test_the_posterior_becomes_calibrated_and_nothing_else_changes(segmenter, generator) -> None:
    predictor = Predictor(segmenter)
    samples, unseen = (noisy_samples(predictor, generator) for _ in range(2))
    choices = choose(predictor, samples)
    assert choices.temperature == pytest.approx(2.0, rel=0.05)
    errors, maps = [], []
    for _ in range(2):
        error = CalibrationError()
        for sample in unseen:
            found = predictor.maps(sample.image.float()[None] / 255)
            error.update(found.posterior, sample.labels[None].long())
        errors.append(error.compute()["ece"].item())
        maps.append(predictor.predict(unseen[0].image))
        choices.give_to(segmenter)
    assert errors[1] < 0.015 < 0.04 < errors[0]
    assert torch.equal(maps[0].labels, maps[1].labels)
    assert torch.equal(maps[0].anomaly, maps[1].anomaly)
    assert segmenter.threshold == choices.threshold


def test_typical_evidence_is_the_mean_over_a_class_s_own_pixels(segmenter, generator) -> None:
    image = torch.randint(0, 256, (3, 30, 30), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 2, (30, 30), generator=generator).to(torch.uint8)  # never the third class
    labels[:4] = IGNORE
    predictor = Predictor(segmenter)
    typical = choose(predictor, [Sample(image, labels)]).typical
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


def test_a_softmax_model_has_none(make_segmenter, generator) -> None:
    predictor = Predictor(make_segmenter(generative=False))
    assert choose(predictor, noisy_samples(predictor, generator, 1)).typical is None


def test_windows_are_divided_once(make_segmenter, generator) -> None:
    segmenter = make_segmenter()
    segmenter.temperature = 3.0
    image = torch.rand(1, 3, 50, 70, generator=generator)
    at_once, windowed = (Predictor(segmenter, window=window).maps(image).logits for window in (None, 24))
    torch.testing.assert_close(windowed, at_once, atol=1e-5, rtol=1e-5)


def test_a_second_choice_builds_on_the_first(segmenter, generator) -> None:
    predictor = Predictor(segmenter)
    samples = noisy_samples(predictor, generator)
    once = choose(predictor, samples)
    once.give_to(segmenter)
    assert choose(predictor, samples).temperature == pytest.approx(once.temperature, rel=1e-2)
