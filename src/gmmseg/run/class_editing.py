"""A class added to a trained model: images and masks in, a new model out, and what it costs the others.

The order is: cells of the new class, its mixture, its prior, then the judgement on validation images.
Nothing is trained and nothing is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.evaluation.class_gain import ClassGain, evaluate_class_gain
from gmmseg.evaluation.evaluator import image_of
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.mixture.class_statistics import ClassSample
from gmmseg.mixture.few_samples import AS_CHOSEN, FewSamples
from gmmseg.mixture.offsets import best_offset, harmless_offset
from gmmseg.models import Segmenter
from gmmseg.models.class_changes import (
    Samples,
    link_terms,
    mixtures_of_cells,
    refuse_name,
    set_log_prior_,
    with_class,
)
from gmmseg.models.pairing import shrink_labels
from gmmseg.run.fit import labelled_cells, maps_viewer
from gmmseg.run.runs import matched_classes
from gmmseg.samples import FingerprintedDataset, Progress, SegmentationDataset, walk

KEPT = 20_000
"""Cells of the new class that its mixture is fitted on."""
CELLS_PER_IMAGE = 2000
"""Cells of an image that have a say in the prior of the new class, evenly spread."""
MOST_LOST = 0.002
"""Mean IoU that the old classes may lose on the validation cells. On other images it may be twice as much:
found on one half of the scenes' validation images, it nearly always kept the other half below 0.5 points."""

MOST_TAKEN = 0.04
"""Share of its right cells that any old class may lose there. The mean alone let bicyclists have a quarter of
the pedestrians: in the few seconds of CamVid val other classes made up for it, in other streets they did not.
"""


@dataclass(frozen=True, eq=False)
class AddedClass:
    """The new model, how many cells its new class is made of, and what it takes from the others.

    ``gain`` is None without validation images.
    """

    segmenter: Segmenter
    cells: int
    components: int
    log_prior: float
    gain: ClassGain | None


def add_class(
    model: Segmenter,
    name: str,
    masks: SegmentationDataset,
    *,
    validation: FingerprintedDataset | None = None,
    components: int | None = None,
    settings: FewSamples = AS_CHOSEN,
    progress: Progress | None = None,
) -> AddedClass:
    """``model`` with one more class, fitted where ``masks`` (1 the class, 0 not, IGNORE) mark it.

    Its log prior is the one of the highest IoU on those images, together with the validation images if they
    are labelled with the new class, and so low that on the latter the old classes lose at most MOST_LOST of
    mean IoU, and none of them more than MOST_TAKEN of what it has right. ``validation``: labelled images;
    classes are matched by name.
    """
    if distributed.world_size() > 1:
        raise ValueError("a class is added by one process: start the command without torchrun")
    mixtures_of_cells(model)
    refuse_name(model, name)
    samples = _samples(model, masks, progress)
    added = with_class(model, name, samples, components=components, settings=settings).eval()
    assert added.mixture is not None
    known = (
        None if validation is None else matched_classes(validation, added.label_names or (), added.colours)
    )
    set_log_prior_(added, -1, _log_prior(added, masks, known, progress))
    predictor = Predictor(added)
    return AddedClass(
        added,
        len(samples.points),
        added.mixture.groups[-1].components,
        float(link_terms(added).offsets[-1]),
        None if known is None else evaluate_class_gain(predictor, known, progress=progress),
    )


def _samples(model: Segmenter, masks: SegmentationDataset, progress: Progress | None) -> Samples:
    """The marked cells, as the head sees them and, where there is a density beside it, as that does."""
    points, images = _marked_cells(model, masks, progress)
    if model.density is None:
        return Samples(points, images=images)
    return Samples(points, _marked_cells(maps_viewer(model), masks, progress)[0], images)


def _marked_cells(
    viewer: Segmenter, masks: SegmentationDataset, progress: Progress | None
) -> tuple[Tensor, int]:
    """Marked cells (n d), at most KEPT of them, and of how many images they are."""
    kept: ClassSample | None = None
    device, images = torch.device("cpu"), set()
    for number, points, labels in labelled_cells(viewer, masks, progress):
        kept = kept or ClassSample(1, points.shape[1], most=KEPT)
        marked, device = points[labels == 1], points.device
        kept.update(marked, torch.zeros(len(marked), dtype=torch.int64, device=device), number)
        if len(marked):
            images.add(image_of(number))
    found = None if kept is None else kept.points_and_labels()[0]
    if found is None or len(found) == 0:
        raise ValueError(
            f"{masks.root or masks.name}: what the masks mark is smaller than a cell of the network, "
            f"{viewer.stride} pixels wide: mark more, or larger examples"
        )
    return found.to(device), len(images)


class _Cells(NamedTuple):
    """Of some cells: the new class's logit less the best of the others', which is that of ``predicted``; and
    their labels."""

    leads: Tensor
    predicted: Tensor
    labels: Tensor


def _log_prior(
    added: Segmenter,
    masks: SegmentationDataset,
    known: SegmentationDataset | None,
    progress: Progress | None,
) -> float:
    """The log prior of the last class; see `add_class`."""
    new, here = added.num_classes - 1, float(link_terms(added).offsets[-1])
    marked = _cells(added, masks, progress)
    leads, is_new = marked.leads, marked.labels == 1
    seen = None if known is None else _cells(added, known, progress)
    if seen is not None and bool((seen.labels == new).any()):
        leads, is_new = torch.cat([leads, seen.leads]), torch.cat([is_new, seen.labels == new])
    # Masks that leave nothing else in their images say nothing about where the class ends.
    shift = 0.0 if bool(is_new.all()) else best_offset(leads, is_new)
    if seen is not None and bool((seen.labels != new).any()):
        old = seen.labels != new
        leads, predicted, labels = seen.leads[old], seen.predicted[old], seen.labels[old]
        shift = harmless_offset(
            leads, predicted, labels, new, highest=shift, most_lost=MOST_LOST, most_taken=MOST_TAKEN
        )
    return here + shift


def _cells(added: Segmenter, dataset: SegmentationDataset, progress: Progress | None) -> _Cells:
    """Some labelled cells of all images, with what the last class and the others say of them."""
    found = list(_cells_of_images(added, dataset, progress))
    return _Cells(*(torch.cat(each) for each in zip(*found)))


def _cells_of_images(
    added: Segmenter, dataset: SegmentationDataset, progress: Progress | None
) -> Iterator[_Cells]:
    predictor = Predictor(added)
    for sample in walk(dataset, progress, range(len(dataset))):  # all images in each process: all agree
        for output, known in predictor.outputs(sample):
            labels = shrink_labels(known, output.logits.shape[-2:])[0].flatten()
            chosen = (labels != IGNORE).nonzero().squeeze(1)
            chosen = chosen[:: max(1, len(chosen) // CELLS_PER_IMAGE)]
            logits = output.logits[0].flatten(1).T[chosen].float().cpu()
            best, predicted = logits[:, :-1].max(1)
            yield _Cells(logits[:, -1] - best, predicted, labels[chosen].cpu())
