"""Mixtures after the fact: a trained softmax model and labelled images in, a generative model out."""

from collections.abc import Iterator
from typing import Any

import torch

from gmmseg.evaluation.evaluator import (
    check_classes,
)
from gmmseg.inference import Predictor
from gmmseg.models import Segmenter
from gmmseg.models.heads import HeadSettings
from gmmseg.models.segmenter import replace_head
from gmmseg.samples import Progress


def fit(
    model: Segmenter, dataset: Any, components: int, *, passes: int = 20, progress: Progress | None = None
) -> tuple[Segmenter, list[float]]:
    """A generative segmenter on the frozen features of a trained softmax one, its mixtures fitted by EM.

    Nothing is trained by gradient: the features are the points. Also returns the mean log-likelihood at
    each pass over ``dataset``.
    """
    channels = model.features.out_channels
    assert isinstance(channels, int)
    settings = HeadSettings(
        components=components, dim=channels, projection="none", coordinates="plain", link="bayes"
    )
    fitted = replace_head(model, settings)
    assert fitted.mixture is not None
    check_classes(dataset, model.num_classes)
    # A softmax head takes the features as they are, which is what the mixtures are fitted on.
    features = replace_head(model, HeadSettings(kind="softmax"))
    history = fitted.mixture.fit(_PointStream(features, dataset, progress), passes=passes)
    return fitted, history


class _PointStream:
    """Points and labels of every image of a data set, computed anew in each pass: nothing is kept."""

    def __init__(self, segmenter: Segmenter, dataset: Any, progress: Progress | None) -> None:
        self.predictor, self.dataset, self.progress = Predictor(segmenter), dataset, progress

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for sample in samples(self.dataset, self.progress):
            images, labels = sample.image.float()[None] / 255, sample.labels[None].long()
            for output, known in self.predictor.outputs(images, labels):
                points, classes, *_ = self.predictor.segmenter.em_points(output, known)
                yield points.clone(), classes


def samples(dataset: Any, progress: Progress | None = None) -> Iterator[Any]:
    """The samples of a data set one after the other."""
    for index in range(len(dataset)):
        sample = dataset[index]
        yield sample
        if progress:
            progress(index + 1, len(dataset), sample.name)
