"""What a class that was added takes from the others."""

from dataclasses import dataclass

import torch

from gmmseg import distributed
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.samples import Progress, SegmentationDataset, check_classes, walk


@dataclass(frozen=True)
class ClassGain:
    """IoU of each old class on pixels of old classes, without the new class and with it, and what it took.

    NaN for a class that does not occur. ``taken``: the share of each old class's pixels that became the new
    one's. ``new_iou``: of the new class, over all labelled pixels; NaN where none is labelled with it.
    """

    new: str
    names: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    taken: tuple[float, ...]
    new_iou: float

    @property
    def lost(self) -> float:
        """How much mean IoU the old classes have lost."""
        pairs = [(b, a) for b, a in zip(self.before, self.after) if b == b and a == a]
        return sum(before - after for before, after in pairs) / len(pairs)


@torch.no_grad()
def evaluate_class_gain(
    predictor: Predictor, dataset: SegmentationDataset, *, progress: Progress | None = None
) -> ClassGain:
    """Judge the last class of a segmenter on a set of its classes; the new one may be missing in it.

    One pass: without the last class a pixel has the best of the other logits, which it does not change.
    """
    names = check_classes(dataset, predictor.segmenter.num_classes).names
    new = len(names) - 1
    matrices = [ConfusionMatrix(len(names)).to(predictor.device) for _ in range(3)]
    for sample in walk(dataset, progress):
        logits = predictor.maps(sample).logits
        labels = sample.labels[None].long().to(logits.device)
        old = labels.masked_fill(labels == new, IGNORE)
        with_it, without_it = logits.argmax(1), logits[:, :new].argmax(1)
        for matrix, guess, true in zip(matrices, (without_it, with_it, with_it), (old, old, labels)):
            matrix.update(guess, true, source=sample.name)
    before, after, everything = (matrix.compute()["iou"] for matrix in matrices)
    counts = distributed.sum_over_processes(matrices[1].counts.double())
    labelled = distributed.any_process(bool(matrices[2].counts[new].any()))
    return ClassGain(
        names[new],
        names[:new],
        tuple(before[:new].tolist()),
        tuple(after[:new].tolist()),
        tuple((counts[:new, new] / counts[:new].sum(1)).tolist()),
        float(everything[new]) if labelled else float("nan"),
    )
