"""What a segmenter returns: the currency between networks, losses, EM and scores."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from gmmseg.mixture import ClassMixture


class EMPoints(NamedTuple):
    """What `OnlineEM.step` takes: ``points`` (n d), ``labels`` (n), ``groups`` (n), the index of the image in
    the batch, and ``correct`` (n) bool, whether the head classifies the point correctly."""

    points: Tensor
    labels: Tensor
    groups: Tensor
    correct: Tensor


@dataclass(frozen=True)
class ClassifiedPoints:
    """Points and what the head says of them, a row each, wherever in the images they are.

    ``points`` (n d), ``logits`` (n c), ``images`` (n), the index of each point's image in the batch.
    ``evidence`` (n c) and ``mixture``, whose evidence it is: generative heads only, else None.
    """

    points: Tensor
    logits: Tensor
    images: Tensor
    evidence: Tensor | None = None
    mixture: ClassMixture | None = None


@dataclass(frozen=True)
class SegmenterOutput:
    """One forward pass at feature resolution (stride of the extractor).

    ``logits`` (b c h w): their log-softmax over ``c`` is the log posterior, for either head.
    ``points`` (b d h w): what the classifier sees in each cell (for a softmax head: the features themselves);
    None where points are not cells.
    ``evidence`` (b c h w): generative heads only, else None.
    ``mixture``, which gives the cells' points this evidence: None where one of the two is.
    ``auxiliary``: logits (b c h' w') of auxiliary heads, in training only.
    ``density_evidence`` (b c h w): log p(cell given class) of the density beside the head, if there is one.
    ``teacher_logits`` (b c h w): those of a trained network that this one learns from, in training only.
    ``companions``: what the heads say that learn beside this one, in training only; outside it their logits
    are part of ``logits``.

    A head applied to rows instead of maps has (n c), (n d), (n c) in their place.
    """

    logits: Tensor
    points: Tensor | None
    evidence: Tensor | None = None
    mixture: ClassMixture | None = None
    auxiliary: tuple[Tensor, ...] = ()
    density_evidence: Tensor | None = None
    teacher_logits: Tensor | None = None
    companions: "tuple[SegmenterOutput, ...]" = ()

    @cached_property
    def log_densities(self) -> Tensor | None:
        """log N of every component, (b c k h w), or None without a mixture.

        Worked out when first asked for and kept: k times as large as the evidence, and neither the posterior
        nor the anomaly score needs it.
        """
        if self.mixture is None or self.points is None:
            return None
        rows = self.points.movedim(1, -1)
        flat = self.mixture.log_density(rows.reshape(-1, rows.shape[-1]))
        maps = flat.unflatten(0, rows.shape[:-1])
        return maps.movedim((-2, -1), (1, 2))


@dataclass(frozen=True, kw_only=True)
class MaskOutput(SegmenterOutput):
    """An output whose points are queries, each with a mask: ``points`` is None, ``queries`` holds them.

    ``logits`` and ``evidence`` (b c h w) are of cells, "no object" left out. ``query_logits`` (b q c+1) and
    ``masks`` (b q h w) are given per decoder layer; outside training, of the last one alone. ``queries`` are
    the b*q rows of the last one.
    """

    queries: ClassifiedPoints
    query_logits: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]
