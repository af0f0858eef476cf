"""Anomaly scores of a segmenter's output, each a small class: higher = stranger, always.

A score is called with anything that has the fields of a SegmenterOutput it needs. Those that need
statistics are fitted first, on pairs (output, labels) of training images.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.labels import IGNORE
from gmmseg.mixture import anomaly_score, class_evidence


class Output(Protocol):
    """What scores read: logits (b c h w), points (b d h w), evidence (b c h w), log_densities (b c k h w)."""

    @property
    def logits(self) -> Tensor: ...
    @property
    def points(self) -> Tensor: ...
    @property
    def evidence(self) -> Tensor | None: ...
    @property
    def log_densities(self) -> Tensor | None: ...


Batches = Iterable[tuple[Output, Tensor]]


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


class StandardisedMaxLogit:
    """SML: the max-logit less its mean, over its deviation, of the predicted class on training images."""

    name = "sml"

    def __init__(self) -> None:
        self.means: Tensor | None = None
        self.deviations: Tensor | None = None

    def fit(self, batches: Batches) -> None:
        """Mean and deviation (c) of the max-logit by predicted class; pooled for classes never predicted."""
        sums = torch.zeros(3, 0, dtype=torch.float64)
        for output, _ in batches:
            top, guess = output.logits.double().max(1)
            if sums.shape[1] == 0:
                sums = torch.zeros(3, output.logits.shape[1], dtype=torch.float64, device=top.device)
            moments = torch.stack([torch.ones_like(top), top, top.square()]).flatten(1)
            sums.index_add_(1, guess.flatten(), moments)
        _refuse_nothing(self.name, sums.numel())
        sums = torch.where(sums[0] > 1, sums, sums.sum(1, keepdim=True))
        means = sums[1] / sums[0]
        self.means = means.float()
        self.deviations = (sums[2] / sums[0] - means.square()).clamp_min(1e-12).sqrt().float()

    def __call__(self, output: Output) -> Tensor:
        means, deviations = _fitted(self.name, self.means), _fitted(self.name, self.deviations)
        top, guess = output.logits.float().max(1)
        return -(top - means.to(top.device)[guess]) / deviations.to(top.device)[guess]


class Mahalanobis:
    """Smallest squared Mahalanobis distance of a point to a class mean, one covariance for all classes."""

    name = "mahalanobis"

    def __init__(self) -> None:
        self.whitener: Tensor | None = None
        self.means: Tensor | None = None

    def fit(self, batches: Batches) -> None:
        """Class means and the shared covariance, from running sums in float64."""
        sums: list[Tensor] = []
        for output, labels in batches:
            points, true = labelled_points(output, labels)
            points = points.double()
            own = F.one_hot(true, output.logits.shape[1]).double()
            batch = [own.sum(0), own.T @ points, points.T @ points]
            sums = [a + b for a, b in zip(sums, batch)] if sums else batch
        _refuse_nothing(self.name, len(sums))
        counts, totals, squares = sums
        means = (totals / counts[:, None])[counts > 0]
        within = (squares - means.T @ (counts[counts > 0, None] * means)) / counts.sum()
        ridge = 1e-6 * within.diagonal().mean().clamp_min(1e-12)
        root = torch.linalg.cholesky(
            within + ridge * torch.eye(len(within), dtype=within.dtype, device=within.device)
        )
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        whitener = torch.linalg.solve_triangular(root, identity, upper=False).T
        self.whitener, self.means = whitener.float(), (means @ whitener).float()

    def __call__(self, output: Output) -> Tensor:
        whitener, means = _fitted(self.name, self.whitener), _fitted(self.name, self.means)
        white = output.points.float().movedim(1, -1) @ whitener.to(output.points.device)
        distances = torch.cdist(white.flatten(0, 2), means.to(white.device))
        return distances.amin(1).square().view(white.shape[:3])


class NearestNeighbours:
    """Distance of a point to its ``neighbours``-th nearest in a random bank of training points."""

    name = "knn"

    def __init__(self, neighbours: int = 1, *, bank_size: int = 10_000, seed: int = 0) -> None:
        self.neighbours = neighbours
        self.bank_size = bank_size
        self.seed = seed
        self.bank: Tensor | None = None

    def fit(self, batches: Batches) -> None:
        """``bank_size`` labelled points drawn evenly from all batches: the largest random numbers."""
        generator = torch.Generator().manual_seed(self.seed)
        bank, draws = torch.zeros(0), torch.zeros(0)
        for output, labels in batches:
            points = labelled_points(output, labels)[0].float().cpu()
            bank = torch.cat([bank, points]) if len(bank) else points
            draws = torch.cat([draws, torch.rand(len(points), generator=generator)])
            kept = draws.topk(min(self.bank_size, len(draws))).indices
            bank, draws = bank[kept], draws[kept]
        _refuse_nothing(self.name, len(bank))
        if len(bank) < self.neighbours:
            raise ValueError(f"{self.name}: {len(bank)} training points for {self.neighbours} neighbours")
        self.bank = bank

    def __call__(self, output: Output) -> Tensor:
        bank = _fitted(self.name, self.bank).to(output.points.device)
        points = output.points.float().movedim(1, -1)
        nearest = [
            torch.cdist(chunk, bank).kthvalue(self.neighbours, dim=1).values
            for chunk in points.flatten(0, 2).split(4096)
        ]
        return torch.cat(nearest).view(points.shape[:3])


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
        densities = _generative(self.name, output.log_densities).float().movedim((1, 2), (-2, -1))
        return anomaly_score(class_evidence(densities, self.log_weights, winner=self.winner))


class WinnerLikelihood(_DensityLikelihood):
    """-max_c log p(x given c) where the best component alone speaks for its class."""

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
    class's own pixels (`gmmseg.inference.choose`). Classes differ in how alike their pixels are: what is
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


ALL = (
    MSP,
    Entropy,
    MaxLogit,
    Energy,
    StandardisedMaxLogit,
    Mahalanobis,
    NearestNeighbours,
    NegativeLogLikelihood,
    WinnerLikelihood,
    MixtureLikelihood,
    LinkedLikelihood,
    PredictedClassLikelihood,
    Typicality,
)
"""Every score."""


def labelled_points(output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Points (n d) and labels (n) of an output and labels (b H W), taken at the points' resolution."""
    size = output.points.shape[-2:]
    near = F.interpolate(labels[:, None].float(), size=size, mode="nearest-exact")[:, 0].long()
    near = near.to(output.points.device)
    valid = near != IGNORE
    return output.points.movedim(1, -1)[valid], near[valid]


def _generative(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(
            f"{name}: this output has no mixture likelihoods; use a softmax score or a GMM model"
        )
    return value


def _fitted(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(f"{name}: call fit on training batches first")
    return value


def _refuse_nothing(name: str, seen: int) -> None:
    if seen == 0:
        raise ValueError(f"{name}: fit has seen no labelled training pixel")
