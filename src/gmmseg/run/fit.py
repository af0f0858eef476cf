"""Mixtures after the fact: a trained softmax model and labelled images in, a generative model out."""

from collections.abc import Iterator

from torch import Tensor

from gmmseg.inference import Predictor
from gmmseg.models import Segmenter
from gmmseg.models.heads import HeadSettings
from gmmseg.models.segmenter import replace_head
from gmmseg.samples import Progress, SegmentationDataset, check_classes, walk


def fit(
    model: Segmenter,
    dataset: SegmentationDataset,
    components: int,
    *,
    passes: int = 20,
    progress: Progress | None = None,
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
    history = fitted.mixture.fit(_Points(features, dataset, progress), passes=passes)
    return fitted, history


class _Points:
    """Points (n d) and labels (n) of each image of a data set, computed anew in each pass."""

    def __init__(
        self, segmenter: Segmenter, dataset: SegmentationDataset, progress: Progress | None = None
    ) -> None:
        self.predictor, self.dataset, self.progress = Predictor(segmenter), dataset, progress

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # All images in each process: the passes of EM are not merged over processes.
        for sample in walk(self.dataset, self.progress, range(len(self.dataset))):
            for output, known in self.predictor.outputs(sample):
                points, labels, *_ = self.predictor.segmenter.em_points(output, known)
                yield points.clone(), labels
