"""Mixtures after the fact: a trained model and labelled images in, mixtures out; no gradient is computed.

`fit_density` puts mixtures of the backbone's maps beside the head, `fit_head` puts mixtures of the features
in place of the head; `fit` is the door to both, `gmmseg.fit`. Each image is read once: what stays is sums of
all cells and a sample of each class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from gmmseg import distributed
from gmmseg.evaluation.evaluator import numbered_outputs
from gmmseg.inference import Predictor
from gmmseg.inference.windows import in_evaluation_mode
from gmmseg.labels import IGNORE
from gmmseg.mixture import WhitenedSphere
from gmmseg.mixture.class_statistics import ClassSample, ClassSums
from gmmseg.models import Calibration, Segmenter, SegmenterOutput, from_pretrained
from gmmseg.models.conversion import share_weights
from gmmseg.models.density import (
    SHRINKAGE,
    VARIANCE_FLOOR,
    CellDensity,
    DensitySettings,
    maps_of_density,
)
from gmmseg.models.features import SplitFeatures, extracted
from gmmseg.models.heads import HeadSettings
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.saving import digest
from gmmseg.models.segmenter import replace_head
from gmmseg.samples import Progress, SegmentationDataset, check_classes

KEPT_PER_CLASS = 4000
"""Cells of a class that EM goes over: more say little new, since the cells of an image are much alike."""
MOST_KEPT_BYTES = 1 << 29
"""What the kept cells may take altogether: with many classes and wide maps, fewer of each are kept."""
MOST_CHANNELS = 1024
"""Maps wider than this get a density only from those who ask for it: it would cost as much as the network."""
_Statistics = tuple[ClassSums, ClassSample]


def fit(
    model: Segmenter,
    dataset: SegmentationDataset,
    *,
    on: str = "backbone",
    components: int = 5,
    passes: int = 10,
    progress: Progress | None = None,
) -> Segmenter:
    """A trained segmenter with Gaussian mixtures fitted on labelled images, one pass over them, no training.

    ``on`` is ``"backbone"``: a density of the backbone's maps beside the head, as `gmmseg train` adds it in
    the end; labels and posterior stay as they are. Or ``"features"``: mixtures of the features in place of
    the head. There are ``components`` Gaussians per class, and at most ``passes`` rounds of EM. The result
    shares the weights of ``model``. Then calibrate it (`gmmseg.calibrate`): only a calibrated model shows the
    density beside its head in the anomaly map.
    """
    return way_to_fit(on)(model, dataset, components, passes=passes, progress=progress)[0]


def way_to_fit(on: str) -> "Way":
    """`fit_density` for ``"backbone"``, `fit_head` for ``"features"``."""
    ways: dict[str, Way] = {"backbone": fit_density, "features": fit_head}
    if on not in ways:
        raise ValueError(f"on={on}: choose {' or '.join(ways)}")
    return ways[on]


class Way(Protocol):
    """Makes a fitted segmenter of a trained one, and says the mean log-likelihood at each pass of EM."""

    def __call__(
        self,
        model: Segmenter,
        dataset: SegmentationDataset,
        components: int = 5,
        *,
        passes: int = 10,
        progress: Progress | None = None,
    ) -> tuple[Segmenter, list[float]]: ...


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
    refuse_queries(model)
    sums, kept = _statistics(maps_viewer(model), dataset, progress)
    settings = DensitySettings(components, channels=len(sums.origin))
    density = CellDensity(model.num_classes, settings).to(sums.origin.device).eval()
    history = density.fit_(sums, kept, passes=passes)
    fitted = share_weights(model)
    assert isinstance(fitted, Segmenter)
    fitted.density = density
    fitted.calibration = _still_true(model, fitted)
    return fitted, history


def add_densities(
    folders: Sequence[Path],
    dataset: SegmentationDataset,
    device: torch.device | str,
    *,
    progress: Progress | None = None,
) -> str | None:
    """Put `fit_density`'s density beside the heads of saved weights, which are written again.

    Weights with the same backbone share it, so that the images are read once. Where there can be none the
    weights stay as they are, and the reason comes back.
    """
    done: list[Segmenter] = []
    for folder in folders:
        model = from_pretrained(folder, calibrated=False).to(device)
        reason = _why_none(model)
        if reason is not None:
            return reason
        same = next((other for other in done if _same_tensors(model.backbone, other.backbone)), None)
        if same is None:
            model, _ = fit_density(model, dataset, progress=progress)
        else:
            model.density, model.calibration = same.density, None
        done.append(model)
    distributed.wait_for_all()  # until here other processes may read the folders
    for folder, model in zip(folders, done) if distributed.rank() == 0 else ():
        model.save_pretrained(folder)
    distributed.wait_for_all()
    return None


def _why_none(model: Segmenter) -> str | None:
    """Why training puts no density beside the head of ``model``; None where it does."""
    if not can_be_split(model):
        return "this network cannot be split into backbone and decoder"
    side = 4 * max(model.stride, 16)
    image = torch.zeros(1, 3, side, side, device=model.mean.device)
    with torch.no_grad():
        channels = in_evaluation_mode(maps_viewer(model))(image).logits.shape[1]
    if channels <= MOST_CHANNELS:
        return None
    return (
        f"with {channels} channels it would cost as much as the network (gmmseg fit makes one all the same)"
    )


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


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
    refuse_queries(model)
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


def refuse_queries(model: Segmenter) -> None:
    """ValueError for a network whose points are not the cells of its maps."""
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
        height, width = images.shape[-2:]
        features, maps = extracted(self.features, self.normalise(images))
        read = maps_of_density(self.features, features, maps, (height, width))
        return SegmenterOutput(read, read)


def maps_viewer(model: Segmenter) -> Segmenter:
    """A segmenter whose points are the cells that a density beside the head of ``model`` sees."""
    viewer = _MapsViewer(model.features, model.head)
    viewer.mean, viewer.std, viewer.inference = model.mean, model.std, model.inference
    return viewer


def _statistics(viewer: Segmenter, dataset: SegmentationDataset, progress: Progress | None) -> _Statistics:
    """Sums over the labelled cells of all images and a sample of each class, reading each image once.

    With several processes each goes through its part of the images, and all return the same.
    """
    check_classes(dataset, viewer.num_classes)
    found: _Statistics | None = None
    for number, points, labels in labelled_cells(viewer, dataset, progress):
        found = found or _empty_statistics(viewer.num_classes, points.shape[1], points.device)
        found[0].update(points, labels)
        found[1].update(points, labels, number)
    # A process that had no image does not know how many channels there are.
    channels = max(distributed.gather_objects(0 if found is None else len(found[0].origin)))
    if channels > 0:
        found = found or _empty_statistics(viewer.num_classes, channels, viewer.mean.device)
        for each in found:
            each.merge_processes()
    if found is None or not bool(found[0].counts.any()):
        raise ValueError(f"{dataset.name}, split {dataset.split}: no labelled cell to fit mixtures on")
    return found


def _empty_statistics(classes: int, channels: int, device: torch.device) -> _Statistics:
    most = max(1, min(KEPT_PER_CLASS, MOST_KEPT_BYTES // (4 * channels * classes)))
    return ClassSums(classes, channels, device), ClassSample(classes, channels, most=most)


def labelled_cells(
    viewer: Segmenter, dataset: SegmentationDataset, progress: Progress | None = None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """A number of its own, points (n d) and labels (n) of the labelled cells of each window of this process's
    images, as a Predictor looks at them."""
    for number, output, known in numbered_outputs(Predictor(viewer), dataset, progress):
        assert output.points is not None
        labels = shrink_labels(known, output.points.shape[-2:])
        chosen = labels != IGNORE
        yield number, output.points.movedim(1, -1)[chosen].clone(), labels[chosen]
