"""What the last class takes from the others, against a slow obvious loop."""

import math

import pytest
import torch
from torch import Tensor, nn

from gmmseg.evaluation.class_gain import evaluate_class_gain
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE, LabelSpace
from gmmseg.models import InferenceSettings, SegmenterOutput
from gmmseg.samples import Sample


class Colours(nn.Module):
    """Class i where channel i is brightest; the third class is the new one."""

    label_names = ("red", "green", "blue")
    colours = density = calibration = None
    inference, align_corners, stride, num_classes, temperature, is_fitted = (
        InferenceSettings(),
        False,
        1,
        3,
        1.0,
        True,
    )
    mixture = None

    def forward(self, images: Tensor) -> SegmenterOutput:
        return SegmenterOutput(images, images)


class Samples(list[Sample]):
    name, split, root = "listed", "val", None
    label_space = LabelSpace(("red", "green", "blue"), ((0, 0, 0),) * 3)

    def labels(self, index: int) -> Tensor:
        return self[index].labels


def iou(predicted, labels, each):
    both, either = (predicted == each) & (labels == each), (predicted == each) | (labels == each)
    return float(both.sum() / either.sum())


@pytest.mark.parametrize("labelled", [True, False])
def test_equals_a_loop_over_the_pixels(generator, labelled):
    images = torch.randint(0, 256, (3, 3, 32, 40), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 3, (3, 32, 40), generator=generator).to(torch.uint8)
    labels[0, :5] = IGNORE
    if not labelled:
        labels[labels == 2] = IGNORE
    samples = Samples(Sample(image, label, "x") for image, label in zip(images, labels))
    found = evaluate_class_gain(Predictor(Colours().eval()), samples)
    after, before = images.float().argmax(1), images[:, :2].float().argmax(1)
    old = labels < 2
    for each in range(2):
        torch.testing.assert_close(found.before[each], iou(before[old], labels[old], each))
        torch.testing.assert_close(found.after[each], iou(after[old], labels[old], each))
        taken = (after[labels == each] == 2).float().mean()
        torch.testing.assert_close(found.taken[each], float(taken))
    known = labels != IGNORE
    if labelled:
        torch.testing.assert_close(found.new_iou, iou(after[known], labels[known], 2))
    else:
        assert math.isnan(found.new_iou)
    lost = sum(found.before) / 2 - sum(found.after) / 2
    torch.testing.assert_close(found.lost, lost)
    assert (found.new, found.names) == ("blue", ("red", "green"))
