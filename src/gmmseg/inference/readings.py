"""Anomaly scores of a segmenter's output that need no training images: higher = stranger, always.

Each is a small class, called with anything that has the fields of a SegmenterOutput it needs.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol

import torch
from torch import Tensor

from gmmseg.mixture import anomaly_score, class_evidence
from gmmseg.models.calibration_file import FUSED, Calibration, ScoreMoments


class Output(Protocol):
    """What scores read: logits (b c h w), points (b d h w), evidence (b c h w), log_densities (b c k h w),
    density_evidence (b c h w).

    Points are None where the network's are not its cells, evidence and log_densities where it has no mixtures
    of points, density_evidence where there is no density beside its head.
    """

    @property
    def logits(self) -> Tensor: ...
    @property
    def points(self) -> Tensor | None: ...
    @property
    def evidence(self) -> Tensor | None: ...
    @property
    def log_densities(self) -> Tensor | None: ...
    @property
    def density_evidence(self) -> Tensor | None: ...


class MSP:
    """Maximum softmax probability: -max_c p(c given x)."""

    name = "msp"

    def __call__(self, output: Output) -> Tensor:
        return -output.logits.float().softmax(1).amax(1)


class Entropy:
    """Entropy of the posterior, in nats."""

    name = "entropy"

    def __call__(self, output: Output) -> Tensor:
        log_posterior = output.logits.float().log_softmax(1)
        return -(log_posterior.exp() * log_posterior).sum(1)


class MaxLogit:
    """-max_c logit."""

    name = "max_logit"

    def __call__(self, output: Output) -> Tensor:
        return -output.logits.float().amax(1)


class Energy:
    """-logsumexp_c logit."""

    name = "energy"

    def __call__(self, output: Output) -> Tensor:
        return -output.logits.float().logsumexp(1)


class Density:
    """-max_c log p(cell given c) of the density beside the head (`gmmseg fit`)."""

    name = "density"

    def __call__(self, output: Output) -> Tensor:
        if output.density_evidence is None:
            raise ValueError(
                f"{self.name}: this model has no density beside its head; "
                "gmmseg fit MODEL --data NAME:ROOT:train --out DIR makes one"
            )
        return anomaly_score(output.density_evidence.float().movedim(1, -1))


class Fused:
    """Energy plus density, each less its mean and over its deviation on known cells.

    What the head was trained to tell apart and what the backbone saw are strange in different places; on one
    scale, either speaks. ``moments``: of both parts, from the model's calibration.
    """

    name = FUSED
    parts = (Energy(), Density())

    def __init__(self, moments: Mapping[str, ScoreMoments] | None = None) -> None:
        missing = [part.name for part in self.parts if part.name not in (moments or {})]
        if moments is None or missing:
            raise ValueError(
                f"{self.name}: the usual {' and '.join(missing)} of known cells is not known yet; "
                "gmmseg calibrate MODEL --data NAME:ROOT:val finds it, once gmmseg fit has made the density"
            )
        self.moments = moments

    def __call__(self, output: Output) -> Tensor:
        energy, density = (
            (part(output) - self.moments[part.name].mean) / self.moments[part.name].deviation
            for part in self.parts
        )
        return energy + density


class NegativeLogLikelihood:
    """-max_c log p(x given c), with the evidence as the model itself defines it, before any link."""

    name = "nll"

    def __call__(self, output: Output) -> Tensor:
        return anomaly_score(_generative(self.name, output.evidence).float().movedim(1, -1))


class _DensityLikelihood:
    """-max_c log p(x given c) from the single components' densities; ``winner`` as in `class_evidence`."""

    name: str
    winner: bool

    def __init__(self, log_weights: Tensor | None = None) -> None:
        self.log_weights = log_weights

    def __call__(self, output: Output) -> Tensor:
        _generative(self.name, output.evidence)
        densities = of_cells(self.name, output.log_densities).float().movedim((1, 2), (-2, -1))
        return anomaly_score(class_evidence(densities, self.log_weights, winner=self.winner))


class WinnerLikelihood(_DensityLikelihood):
    """-max_c log p(x given c) where the best component alone stands for its class."""

    name, winner = "nll_winner", True


class MixtureLikelihood(_DensityLikelihood):
    """-max_c log p(x given c) under the whole mixture of each class (logsumexp over components)."""

    name, winner = "nll_logsumexp", False


class LinkedLikelihood:
    """-max_c of the class scores after the link (a class normalisation, a temperature and prior)."""

    name = "nll_linked"

    def __call__(self, output: Output) -> Tensor:
        _generative(self.name, output.evidence)
        return -output.logits.float().amax(1)


class PredictedClassLikelihood:
    """-log p(x given c) of the class the posterior predicts."""

    name = "nll_predicted"

    def __call__(self, output: Output) -> Tensor:
        evidence = _generative(self.name, output.evidence).float()
        return -evidence.gather(1, output.logits.argmax(1, keepdim=True)).squeeze(1)


class Typicality:
    """How much less likely a point is than is typical of what it is taken for.

    ``sum_c p(c given x) [typical_c - log p(x given c)]``, with ``typical`` (c) the mean evidence of each
    class's own pixels (`gmmseg.inference.calibrate`). Classes differ in how alike their pixels are: what is
    likely for a car would be strange on a road. Holds where images are like those it was measured on.
    """

    name = "typicality"

    def __init__(self, typical: Sequence[float] | None = None) -> None:
        if typical is None:
            raise ValueError(
                f"{self.name}: nothing is known yet of what is typical of this model's classes; "
                "gmmseg calibrate MODEL --data NAME:ROOT:val finds out (generative models alone)"
            )
        self.typical = torch.tensor(typical)

    def __call__(self, output: Output) -> Tensor:
        evidence = _generative(self.name, output.evidence).float()
        surprise = self.typical.to(evidence.device)[:, None, None] - evidence
        return (output.logits.float().softmax(1) * surprise).sum(1)


PLAIN = (
    MSP,
    Entropy,
    MaxLogit,
    Energy,
    NegativeLogLikelihood,
    WinnerLikelihood,
    MixtureLikelihood,
    LinkedLikelihood,
    PredictedClassLikelihood,
    Typicality,
    Density,
    Fused,
)
"""Scores that need nothing but a model and its calibration."""


class Score(Protocol):
    """Makes one map (b h w) of an output at the network's resolution, and has a name."""

    @property
    def name(self) -> str: ...
    def __call__(self, output: Output) -> Tensor: ...


class Calibrated(Protocol):
    """A segmenter, as far as scores are concerned."""

    @property
    def calibration(self) -> Calibration | None: ...
    @property
    def mixture(self) -> object | None: ...


def score_named(name: str, calibration: Calibration | None, others: Sequence[str] = ()) -> Score:
    """The score of a model with this calibration; ValueError with the nearest names for one that is not.

    ``others``: names of scores that can be had elsewhere, for the message.
    """
    if name == Typicality.name:
        return Typicality(None if calibration is None else calibration.typical)
    if name == Fused.name:
        return Fused({} if calibration is None else calibration.moments)
    kinds = {kind.name: kind for kind in PLAIN}
    if name in kinds:
        return kinds[name]()
    known = [*kinds, *others]
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"unknown score {name!r}{meant}: choose among {', '.join(known)}")


def shown_score(model: Calibrated) -> str:
    """The name of the score that a model shows: its calibration's, else the likelihood or the max-logit."""
    if fused_of(model.calibration) is not None:
        return Fused.name
    return MaxLogit.name if model.mixture is None else NegativeLogLikelihood.name


def fused_of(calibration: Calibration | None) -> Fused | None:
    """The fused score, where a calibration says that it is what a model shows."""
    if calibration is None or calibration.score != FUSED:
        return None
    return Fused(calibration.moments)


def _generative(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(
            f"{name}: this output has no mixture likelihoods; use a softmax score or a GMM model"
        )
    return value


def of_cells(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(
            f"{name}: it reads the point of each cell, and this network's points are not its cells "
            "(Mask2Former's are queries); use nll or a softmax score"
        )
    return value
