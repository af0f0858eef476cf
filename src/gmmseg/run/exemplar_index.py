"""The index of exemplars: a model and its training images in, the pixels its components stand for out."""

import heapq
import io
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.inference import Predictor
from gmmseg.inference.pictures import crop_around
from gmmseg.inference.predictor import View
from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture
from gmmseg.models import Segmenter
from gmmseg.models.class_changes import NO_COMPONENTS
from gmmseg.models.exemplars import Exemplar, read_exemplars, write_exemplars
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.saving import CONFIG_FILE, digest
from gmmseg.run.runs import matched_classes, weights_of
from gmmseg.samples import FingerprintedDataset, Progress, Sample, walk

PER_COMPONENT = 4
"""Exemplars of a component, each of another image."""
LARGEST_CROP = 96
"""Pixels; a crop is a quarter of the image's shorter side, and at most this many pixels are kept of it."""


def index_folder(source: str | Path) -> Path | None:
    """The folder beside whose weights the index of a model lies; None for a model that is in no folder."""
    folder = next(iter(weights_of(Path(source))), Path(source))
    return folder if (folder / CONFIG_FILE).is_file() else None


def exemplars_of(source: str | Path, model: Segmenter) -> tuple[Exemplar, ...] | None:
    """The index beside the weights of a model; None where there is none."""
    folder = index_folder(source)
    return None if folder is None else read_exemplars(folder, digest(model))


def build_exemplars(
    source: str | Path, model: Segmenter, dataset: FingerprintedDataset, *, progress: Progress | None = None
) -> Path:
    """Write the index of a model beside its weights; returns the folder.

    ``dataset``: labelled training images; classes are matched by name where the model has names.
    """
    folder = index_folder(source)
    if folder is None:
        raise ValueError(
            f"{source}: no folder of weights to write the index into; save the model in one first"
        )
    found = find_exemplars(model, dataset, progress=progress)
    if distributed.rank() == 0:
        write_exemplars(found, digest(model), folder)
    distributed.wait_for_all()
    return folder


@torch.no_grad()
def find_exemplars(
    model: Segmenter,
    dataset: FingerprintedDataset,
    per_component: int = PER_COMPONENT,
    *,
    progress: Progress | None = None,
) -> tuple[Exemplar, ...]:
    """The training cells nearest to the mean of each component of their class, by class and component."""
    if model.mixture is None or not model.points_are_cells:
        raise ValueError(NO_COMPONENTS)
    if model.label_names is not None:
        dataset = matched_classes(dataset, model.label_names, model.colours)
    best: dict[tuple[int, int], list[tuple[float, int, Exemplar]]] = defaultdict(list)
    predictor = Predictor(model)
    for number, sample in enumerate(walk(dataset, progress, range(len(dataset)))):
        for (label, component), (distance, x, y) in _nearest(predictor, sample).items():
            kept = best[label, component]
            # Heaps have their least entry first: the farthest, as distances are stored with a minus.
            if len(kept) < per_component or distance < -kept[0][0]:
                found = Exemplar(label, component, sample.name, x, y, distance, _crop(sample, x, y))
                heapq.heappush(kept, (-distance, -number, found))
                if len(kept) > per_component:
                    heapq.heappop(kept)
    if not best:
        raise ValueError(f"{dataset.name}, split {dataset.split}: no labelled cell of the model's classes")
    return tuple(entry[2] for key in sorted(best) for entry in sorted(best[key], key=lambda each: -each[0]))


def _nearest(predictor: Predictor, sample: Sample) -> dict[tuple[int, int], tuple[float, int, int]]:
    """By class and component of one image: the least distance from the mean, and the pixel x, y there."""
    found: dict[tuple[int, int], tuple[float, int, int]] = {}
    mixture = predictor.segmenter.mixture
    assert mixture is not None
    for view in predictor.views(sample):
        for key, distance, row, column in _nearest_in(view, mixture):
            if key not in found or distance < found[key][0]:
                x, y = view.pixel(row, column)
                height, width = sample.labels.shape
                found[key] = distance, min(x, width - 1), min(y, height - 1)
    return found


def _nearest_in(view: View, mixture: ClassMixture) -> Iterator[tuple[tuple[int, int], float, int, int]]:
    """(class, component), distance, row and column of the nearest cell of each class and component."""
    assert view.output.points is not None
    points = view.output.points[0]
    labels = shrink_labels(view.labels, points.shape[-2:])[0]
    used = [group.components for group in mixture.groups for _ in range(group.classes)]
    for label in labels[labels != IGNORE].unique().tolist():
        places = (labels == label).nonzero()
        own = points[:, places[:, 0], places[:, 1]].T.float()
        distances = _distances(
            own, mixture.means[label, : used[label]], mixture.variances[label, : used[label]]
        )
        least, which = distances.min(0)
        for component, (distance, index) in enumerate(zip(least.tolist(), which.tolist())):
            row, column = places[index].tolist()
            yield (label, component), distance, row, column


def _distances(points: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """(n k) distances of points (n d) from means (k d), in standard deviations."""
    return torch.stack(
        [((points - mean).square() / variance).sum(1).sqrt() for mean, variance in zip(means, variances)],
        dim=1,
    )


def _crop(sample: Sample, x: int, y: int) -> bytes:
    """The surroundings of a pixel as a JPEG file."""
    pixels = sample.image.permute(1, 2, 0).numpy()
    picture = crop_around(pixels, x, y, max(24, min(pixels.shape[:2]) // 4))
    picture.thumbnail((LARGEST_CROP, LARGEST_CROP))
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()
