"""Which query stands for which labelled mask: Mask2Former's matching, and its losses on what is matched."""

import copy
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM
from gmmseg.models.outputs import MaskOutput
from gmmseg.models.pairing import LabelledPoints, PairedOutput

if TYPE_CHECKING:
    from transformers import Mask2FormerForUniversalSegmentation

Match = list[tuple[Tensor, Tensor]]
"""Per image: indices (t) of queries, and of the labelled masks they stand for."""

_NAMES = {"posterior": "loss_cross_entropy", "mask": "loss_mask", "dice": "loss_dice"}


class Criterion(Protocol):
    """Mask2Former's matching and losses, as far as they are used here; a module of transformers.

    Masks are (t q h w) and those of labels (t' H W) per image, logits (t q c+1), classes (t') per image.
    """

    weight_dict: dict[str, float]
    eos_coef: float

    def matcher(
        self, masks: Tensor, logits: Tensor, label_masks: list[Tensor], classes: list[Tensor], /
    ) -> Match: ...
    def loss_masks(
        self, masks: Tensor, label_masks: list[Tensor], match: Match, count: Tensor, /
    ) -> dict[str, Tensor]: ...
    def loss_labels(self, logits: Tensor, classes: list[Tensor], match: Match, /) -> dict[str, Tensor]: ...


class PairedMasks(PairedOutput):
    """Queries and labels, matched when they are brought together; each decoder layer has its own match.

    That of the last layer is found once, for Mask2Former's own terms, for the terms of points and for EM. An
    image without any label says nothing about its queries.
    """

    output: MaskOutput

    def __init__(self, output: MaskOutput, labels: Tensor, criterion: Criterion) -> None:
        self.output, self.labels, self.criterion = output, labels, criterion
        masks, classes = mask_labels(labels)
        self.known = [image for image, present in enumerate(classes) if len(present)]
        self.masks, self.classes = ([each[image] for image in self.known] for each in (masks, classes))
        self.match = self._matched(output.masks[-1][self.known], output.query_logits[-1][self.known])

    @torch.no_grad()
    def _matched(self, masks: Tensor, logits: Tensor) -> Match:
        """The match of masks (t q h w) and logits (t q c+1) of the labelled images."""
        with full_precision(masks):
            return self.criterion.matcher(masks, logits, self.masks, self.classes)

    @cached_property
    def points(self) -> LabelledPoints:
        """The queries with the classes of their masks; "no object" for those that stand for none."""
        logits = self.output.query_logits[-1]
        labels = torch.full(logits.shape[:2], IGNORE, device=logits.device)
        labels[self.known] = logits.shape[-1] - 1
        for image, (query, target), present in zip(self.known, self.match, self.classes):
            labels[image, query.to(labels.device)] = present[target.to(labels.device)]
        return LabelledPoints(self.output.queries, labels.flatten())

    def losses(self, extra: Collection[str] = (), em: OnlineEM | None = None) -> dict[str, Tensor]:
        """Mask2Former's ``posterior`` of the queries, ``mask`` and ``dice``; ``extra`` as for maps.

        Each of its own terms is the sum over the decoder layers, in its own proportions.
        """
        with full_precision(self.labels):
            own = self._own_terms() if self.known else self._no_terms()
            return {**own, **self.points.terms(extra, em)}

    def _own_terms(self) -> dict[str, Tensor]:
        layers = [(m[self.known], c[self.known]) for m, c in zip(self.output.masks, self.output.query_logits)]
        found = [self._layer_terms(*layers[-1], self.match)]
        found += [self._layer_terms(*each, self._matched(*each)) for each in layers[:-1]]
        weights = self.criterion.weight_dict
        return {
            name: weights[key] * torch.stack([terms[key] for terms in found]).sum()
            for name, key in _NAMES.items()
        }

    def _layer_terms(self, masks: Tensor, logits: Tensor, match: Match) -> dict[str, Tensor]:
        # Mask and dice terms are means over the masks of this process's batch. Mask2Former's own count asks
        # the other processes, and would wait for ever for one whose batch has no label at all; the trainer
        # weighs the batches of all processes (`label_counts`).
        count = torch.tensor(float(sum(map(len, self.classes))), device=masks.device)
        return {
            **self.criterion.loss_masks(masks, self.masks, match, count),
            **self.criterion.loss_labels(logits, self.classes, match),
        }

    def _no_terms(self) -> dict[str, Tensor]:
        """Zeros with a gradient (of zeros): every process must have all terms."""
        every = (*self.output.query_logits, *self.output.masks)
        zero = torch.stack([each.sum() for each in every]).sum() * 0.0
        return dict.fromkeys(_NAMES, zero)


def mask_labels(labels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Per image of labels (b H W): masks (t H W) of the classes present, and those classes (t)."""
    masks, classes = [], []
    for each in labels:
        present = each.unique()
        present = present[present != IGNORE]
        classes.append(present)
        masks.append((each == present[:, None, None]).float())
    return masks, classes


def make_criterion(model: "Mask2FormerForUniversalSegmentation", num_classes: int) -> Criterion:
    """Mask2Former's matching and losses for this number of classes, without a trace in saved weights."""
    config = copy.deepcopy(model.config)
    config.num_labels = num_classes
    criterion = type(model.criterion)(config=config, weight_dict=model.weight_dict)
    weight = criterion.empty_weight
    del criterion.empty_weight
    criterion.register_buffer("empty_weight", weight, persistent=False)
    return cast(Criterion, criterion)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Float32 inside, also where the caller's loop keeps autocast on."""
    return torch.autocast(tensor.device.type, enabled=False)
