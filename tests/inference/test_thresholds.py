import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gmmseg.inference import FalseAlarms, Predictor, ScoreHistogram, calibrate
from gmmseg.labels import IGNORE
from gmmseg.samples import Sample


def histogram_of(*parts: Tensor) -> ScoreHistogram:
    histogram = ScoreHistogram()
    for part in parts:
        histogram.update(part)
    return histogram


@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (30, -200), (1e-4, 0), (1e6, 5e6), (0.1, -1)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5])
def test_the_share_asked_for_exceeds_the_threshold(generator, scale, shift, share):
    scores = torch.randn(40_000, generator=generator) * scale + shift
    threshold = histogram_of(scores).threshold(share)
    exceeding = (scores > threshold).double().mean().item()
    assert exceeding <= share
    assert exceeding >= share - 0.003
    exact = scores.double().quantile(1 - share).item()
    assert threshold == pytest.approx(exact, rel=2e-4, abs=scale * 0.01)


def test_parts_in_any_order_are_the_whole(generator):
    scores = torch.randn(3000, generator=generator)
    first = histogram_of(scores[:7], scores[7:].view(41, 73)).counts
    assert np.array_equal(first, histogram_of(scores.flip(0)).counts)


def test_infinities_constants_and_zeros_are_legal():
    infinite = torch.tensor([-math.inf] * 10 + [math.inf] * 90)
    assert histogram_of(infinite).threshold(0.05) == math.inf
    assert histogram_of(-infinite).threshold(0.2) == -math.inf
    constant = torch.full((100,), -3.7)
    assert not (constant > histogram_of(constant).threshold(0.05)).any()
    zeros = torch.tensor([0.0, -0.0] * 50)
    assert histogram_of(zeros).threshold(0.05) == pytest.approx(0, abs=1e-30)


def test_nan_nothing_and_impossible_shares_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        histogram_of(torch.tensor([0.0, math.nan]))
    with pytest.raises(ValueError, match="no known pixels"):
        ScoreHistogram().threshold(0.05)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        histogram_of(torch.zeros(3)).threshold(1.0)


def test_only_labelled_pixels_count_and_scores_come_at_label_size(segmenter, listed, generator):
    """Grey pixels score higher the darker they are; the ignored half is black and must not matter."""
    samples, scores = [], []
    for _ in range(3):
        image = (
            torch.randint(100, 200, (1, 20, 20), generator=generator, dtype=torch.uint8)
            .expand(3, -1, -1)
            .clone()
        )
        labels = torch.zeros(20, 20, dtype=torch.uint8)
        image[:, :10], labels[:10] = 0, IGNORE
        samples.append(Sample(image, labels, "x"))
        scores.append(Predictor(segmenter).predict(image).anomaly[10:].flatten())
    asked = FalseAlarms(0.3)
    threshold = calibrate(Predictor(segmenter), listed(samples), false_alarms=asked).threshold
    share = (torch.cat(scores) > threshold).float().mean().item()
    assert 0.03 < share <= (4 * 0.3 - 1) / 3  # one image of three and one is taken to be the worst
