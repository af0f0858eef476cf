"""Mixtures after the fact: a trained model and labelled images in, mixtures out; no gradient is computed.

`fit_density` puts mixtures of the backbone's maps beside the head, `fit_head` puts mixtures of the features
in place of the head. Each image is read once: what stays is sums of all cells and a sample of each class.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.mixture import WhitenedSphere
from gmmseg.mixture.class_statistics import ClassSample, ClassSums
from gmmseg.models import Calibration, Segmenter, SegmenterOutput
from gmmseg.models.conversion import share_weights
from gmmseg.models.density import (
    SHRINKAGE,
    VARIANCE_FLOOR,
    CellDensity,
    DensitySettings,
    features_and_maps,
)
from gmmseg.models.features import SplitFeatures
from gmmseg.models.heads import HeadSettings
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.saving import digest
from gmmseg.models.segmenter import replace_head
from gmmseg.samples import Progress, SegmentationDataset, check_classes, walk

KEPT_PER_CLASS = 4000
"""Cells of a class that EM goes over: more say little new, since the cells of an image are much alike."""
MOST_KEPT_BYTES = 1 << 29
"""What the kept cells may take altogether: with many classes and wide maps, fewer of each are kept."""


def fit_density(
    model: Segmenter,
    dataset: SegmentationDataset,
    components: int = 5,
    *,
    passes: int = 10,
    progress: Progress | None = None,
) -> tuple[Segmenter, list[float]]:
    """The same segmenter with a density of its backbone's maps beside the head, fitted on labelled images.

    Labels and posterior stay. A network whose features cannot be split into backbone and decoder gets a
    density of its features for the head. Also returns the mean log-likelihood at each pass of EM.
    """
    _refuse_queries(model)
    sums, kept = _statistics(maps_viewer(model), dataset, progress)
    settings = DensitySettings(components, channels=len(sums.origin))
    density = CellDensity(model.num_classes, settings).to(sums.origin.device).eval()
    history = density.fit_(sums, kept, passes=passes)
    fitted = share_weights(model)
    assert isinstance(fitted, Segmenter)
    fitted.density = density
    fitted.calibration = _still_true(model, fitted)
    return fitted, history


def fit_head(
    model: Segmenter,
    dataset: SegmentationDataset,
    components: int = 5,
    *,
    passes: int = 10,
    progress: Progress | None = None,
) -> tuple[Segmenter, list[float]]:
    """A generative segmenter on the frozen features of a trained one: mixtures in place of its head.

    The features are whitened within classes, placed on the sphere, and are the points. Also returns the mean
    log-likelihood at each pass of EM.
    """
    _refuse_queries(model)
    channels = model.features.out_channels
    assert isinstance(channels, int)
    settings = HeadSettings(
        components=components, dim=channels + 1, projection="none", coordinates="whitened", link="bayes"
    )
    fitted = replace_head(model, settings)
    # A softmax head takes the features as they are, which is what the mixtures are fitted on.
    sums, kept = _statistics(replace_head(model, HeadSettings(kind="softmax")), dataset, progress)
    mixture = fitted.to(sums.origin.device).mixture
    assert mixture is not None
    assert isinstance(mixture.coordinates, WhitenedSphere)
    mixture.coordinates.whiten_channels_(sums.centre(), sums.within(), SHRINKAGE)
    cells, labels = (each.to(sums.origin.device) for each in kept.points_and_labels())
    history = mixture.fit(mixture.points(cells), labels, passes=passes, variance_floor=VARIANCE_FLOOR)
    return fitted, history


def can_be_split(model: Segmenter) -> bool:
    """Whether `fit_density` reads the maps of the backbone; else the features for the head."""
    return isinstance(model.features, SplitFeatures)


def _refuse_queries(model: Segmenter) -> None:
    if not model.points_are_cells:
        raise ValueError(
            f"a {type(model).__name__} classifies queries, not cells of its maps, so there is nothing to fit "
            "mixtures on: give a network that classifies cells, such as hf: SegFormer or one of the zoo"
        )


def _still_true(model: Segmenter, fitted: Segmenter) -> Calibration | None:
    """The calibration of ``model`` for the same labels and scores of ``fitted``; None if it had a density."""
    if model.calibration is None or model.density is not None:
        return None
    return replace(model.calibration, weights=digest(fitted))


class _MapsViewer(Segmenter):
    """Shows what a density sees in each cell as its points."""

    def forward(self, images: Tensor) -> SegmenterOutput:
        _, maps = features_and_maps(self.features, self.normalise(images))
        return SegmenterOutput(maps, maps)


def maps_viewer(model: Segmenter) -> Segmenter:
    """A segmenter whose points are the cells that a density beside the head of ``model`` sees."""
    viewer = _MapsViewer(model.features, model.head)
    viewer.mean, viewer.std, viewer.inference = model.mean, model.std, model.inference
    return viewer


def _statistics(
    viewer: Segmenter, dataset: SegmentationDataset, progress: Progress | None
) -> tuple[ClassSums, ClassSample]:
    """Sums over the labelled cells of all images and a sample of each class, reading each image once."""
    classes = viewer.num_classes
    check_classes(dataset, classes)
    found: tuple[ClassSums, ClassSample] | None = None
    for points, labels in labelled_cells(viewer, dataset, progress):
        if found is None:
            dim = points.shape[1]
            most = max(1, min(KEPT_PER_CLASS, MOST_KEPT_BYTES // (4 * dim * classes)))
            found = ClassSums(classes, dim, points.device), ClassSample(classes, dim, most=most)
        for each in found:
            each.update(points, labels)
    if found is None or not bool(found[0].counts.any()):
        raise ValueError(f"{dataset.name}, split {dataset.split}: no labelled cell to fit mixtures on")
    return found


def labelled_cells(
    viewer: Segmenter, dataset: SegmentationDataset, progress: Progress | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Points (n d) and labels (n) of the labelled cells of each image, as a Predictor looks at it."""
    predictor = Predictor(viewer)
    # All images in each process: statistics are not merged over processes.
    for sample in walk(dataset, progress, range(len(dataset))):
        for output, known in predictor.outputs(sample):
            assert output.points is not None
            labels = shrink_labels(known, output.points.shape[-2:])
            chosen = labels != IGNORE
            yield output.points.movedim(1, -1)[chosen].clone(), labels[chosen]
