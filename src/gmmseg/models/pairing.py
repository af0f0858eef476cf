"""An output brought together with its labels, once: loss terms and EM both take what comes of it."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.mixture import OnlineEM
from gmmseg.models.features import resize
from gmmseg.models.losses import (
    component_cross_entropy,
    cross_entropy,
    divergence_from_teacher,
    own_negative_log_likelihood,
)
from gmmseg.models.outputs import ClassifiedPoints, EMPoints, SegmenterOutput


@dataclass(frozen=True)
class LabelledPoints:
    """Classified points (n rows) and ``labels`` (n): train ids, or IGNORE."""

    classified: ClassifiedPoints
    labels: Tensor

    def terms(self, names: Collection[str], em: OnlineEM | None) -> dict[str, Tensor]:
        """The loss terms ``component`` and ``likelihood``, those of ``names``; none without a mixture."""
        each, terms = self.classified, {}
        if each.mixture is None or each.evidence is None:
            return {}
        if "component" in names:
            terms["component"] = component_cross_entropy(each.mixture, each.points, self.labels, em)
        if "likelihood" in names:
            terms["likelihood"] = own_negative_log_likelihood(
                each.logits, each.evidence, self.labels, channels=each.points.shape[1]
            )
        return terms

    @torch.no_grad()
    def for_em(self) -> EMPoints:
        """What `OnlineEM.step` takes, without gradients."""
        each = self.classified
        correct = each.logits.argmax(-1) == self.labels
        return EMPoints(each.points.detach(), self.labels, each.images, correct)


class PairedOutput(ABC):
    """An output with the labels (b H W) it is compared with."""

    output: SegmenterOutput
    labels: Tensor

    @property
    @abstractmethod
    def points(self) -> LabelledPoints:
        """The points of the output, each with its label; with gradients."""

    @abstractmethod
    def losses(self, extra: Collection[str] = (), em: OnlineEM | None = None) -> dict[str, Tensor]:
        """Named, unweighted terms, each zero when every label is IGNORE; see `Segmenter.losses`."""


class PairedMaps(PairedOutput):
    """Maps and labels: a cell's point has the label at the cell's centre."""

    def __init__(self, output: SegmenterOutput, labels: Tensor, *, align_corners: bool) -> None:
        self.output, self.labels, self.align_corners = output, labels, align_corners

    @cached_property
    def points(self) -> LabelledPoints:
        output = self.output
        assert output.points is not None
        b, _, h, w = output.points.shape
        images = torch.arange(b, device=output.points.device).repeat_interleave(h * w)
        evidence = None if output.evidence is None else _rows(output.evidence)
        classified = ClassifiedPoints(
            _rows(output.points), _rows(output.logits), images, evidence, output.mixture
        )
        return LabelledPoints(classified, shrink_labels(self.labels, (h, w)).reshape(-1))

    def losses(self, extra: Collection[str] = (), em: OnlineEM | None = None) -> dict[str, Tensor]:
        terms = {"posterior": self.cross_entropy(self.output.logits)}
        if extra and self.output.mixture is not None:
            terms |= self.points.terms(extra, em)
        if self.output.teacher_logits is not None:
            terms["teacher"] = divergence_from_teacher(
                _rows(self.output.logits), _rows(self.output.teacher_logits), self.points.labels
            )
        if self.output.auxiliary:
            each = [self.cross_entropy(logits) for logits in self.output.auxiliary]
            terms["auxiliary"] = torch.stack(each).mean()
        return terms

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Mean cross-entropy of logits (b c h w), resized to the labels as the network's own are."""
        full = resize(logits, self.labels.shape[-2:], align_corners=self.align_corners)
        return cross_entropy(full, self.labels)


def _rows(maps: Tensor) -> Tensor:
    """Maps (b d h w) -> rows (b*h*w d); a view where the maps are views of rows."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def shrink_labels(labels: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Labels (b H W) at the centres of the cells of a coarser grid, (b h w)."""
    return F.interpolate(labels[:, None].float(), size=tuple(size), mode="nearest-exact")[:, 0].to(
        labels.dtype
    )
