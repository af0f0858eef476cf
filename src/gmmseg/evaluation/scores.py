"""Anomaly scores of a segmenter's output, each a small class: higher = stranger, always.

A score is called with anything that has the fields of a SegmenterOutput it needs. Those that need nothing
else are `gmmseg.inference.readings`; these here are fitted first, on outputs and labels of training images.
With several processes each goes through its share and all get the statistics of the whole set.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg import distributed
from gmmseg.inference.readings import (  # noqa: F401  those that need no fitting can be had here, too
    MSP,
    Density,
    Energy,
    Entropy,
    Fused,
    LinkedLikelihood,
    MaxLogit,
    MixtureLikelihood,
    NegativeLogLikelihood,
    Output,
    PredictedClassLikelihood,
    Typicality,
    WinnerLikelihood,
    of_cells,
)
from gmmseg.labels import IGNORE
from gmmseg.mixture.class_statistics import MOST_POINTS_OF_A_BATCH, ClassSums
from gmmseg.mixture.sampling import hashed

Batches = Iterable[tuple[Output, Tensor]]
NOTHING_SEEN = "fit has seen no labelled training pixel"


class FittedScore:
    """A score that needs statistics of training images: `start`, `update` with each batch, `finish`."""

    name: str

    def fit(self, batches: Batches) -> None:
        """Start afresh and take in pairs (output, labels), this process's share of the training set."""
        rank, processes = distributed.rank(), distributed.world_size()
        numbered = ((rank + place * processes, *batch) for place, batch in enumerate(batches))
        fit_together([self], numbered)

    def start(self) -> None:
        """Forget what was taken in so far."""
        raise NotImplementedError

    def update(self, index: int, output: Output, labels: Tensor) -> None:
        """Take in an output and its labels (b H W); ``index`` counts the batches of all processes."""
        raise NotImplementedError

    def finish(self) -> None:
        """Merge what all processes have taken in and be ready to score."""
        raise NotImplementedError


def fit_together(scores: Sequence[FittedScore], batches: Iterable[tuple[int, Output, Tensor]]) -> None:
    """Fit all ``scores`` in one pass over this process's batches (index, output, labels)."""
    for score in scores:
        score.start()
    for index, output, labels in batches:
        for score in scores:
            score.update(index, output, labels)
    for score in scores:
        score.finish()


class _SummedScore(FittedScore):
    """A score whose statistics are sums in float64, which add up over batches and processes."""

    def start(self) -> None:
        self.sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        self.sums = sums if self.sums is None else self.sums + sums

    def merged_sums(self) -> Tensor:
        """The sums of all processes; one that went through no batch has none to add."""
        sums = distributed.sum_of_those_with_values(self.sums)
        self.sums = None
        if sums is None:
            raise ValueError(f"{self.name}: {NOTHING_SEEN}")
        return sums


class StandardisedMaxLogit(_SummedScore):
    """SML: the max-logit less its mean, over its deviation, of the predicted class on training images."""

    name = "sml"

    def __init__(self) -> None:
        self.means: Tensor | None = None
        self.deviations: Tensor | None = None

    def update(self, index: int, output: Output, labels: Tensor) -> None:
        """Count, sum and sum of squares of the max-logit by predicted class, (3 c)."""
        top, guess = output.logits.double().max(1)
        moments = torch.stack([torch.ones_like(top), top, top.square()]).flatten(1)
        self.add(moments.new_zeros(3, output.logits.shape[1]).index_add_(1, guess.flatten(), moments))

    def finish(self) -> None:
        """Mean and deviation (c) of the max-logit by predicted class; pooled for classes never predicted."""
        sums = self.merged_sums()
        sums = torch.where(sums[0] > 1, sums, sums.sum(1, keepdim=True))
        means = sums[1] / sums[0]
        self.means = means.float()
        self.deviations = (sums[2] / sums[0] - means.square()).clamp_min(1e-12).sqrt().float()

    def __call__(self, output: Output) -> Tensor:
        means, deviations = _fitted(self.name, self.means), _fitted(self.name, self.deviations)
        top, guess = output.logits.float().max(1)
        return -(top - means.to(top.device)[guess]) / deviations.to(top.device)[guess]


class Mahalanobis(FittedScore):
    """Smallest squared Mahalanobis distance of a point to a class mean, one covariance for all classes."""

    name = "mahalanobis"

    def __init__(self) -> None:
        self.centre: Tensor | None = None
        self.whitener: Tensor | None = None
        self.means: Tensor | None = None

    def start(self) -> None:
        self.sums: ClassSums | None = None

    def update(self, index: int, output: Output, labels: Tensor) -> None:
        """Add the labelled points of a batch."""
        points, true = labelled_points(of_cells(self.name, output.points), labels)
        if len(points) == 0:
            return
        if self.sums is None:
            self.sums = ClassSums(output.logits.shape[1], points.shape[1], points.device)
        self.sums.update(points, true)

    def finish(self) -> None:
        """Class means and the shared covariance, from the sums of all processes."""
        sums = _sums_of_all(self.name, self.sums)
        seen, within = sums.counts > 0, sums.within()
        means = sums.totals[seen] / sums.counts[seen, None]
        identity = torch.eye(len(within), dtype=within.dtype, device=within.device)
        ridge = 1e-6 * within.diagonal().mean().clamp_min(1e-12)
        root = torch.linalg.cholesky(within + ridge * identity)
        whitener = torch.linalg.solve_triangular(root, identity, upper=False).T
        self.centre, self.whitener, self.means = sums.origin, whitener, (means @ whitener).float()

    def __call__(self, output: Output) -> Tensor:
        points = of_cells(self.name, output.points)
        centre, whitener, means = (
            _fitted(self.name, each).to(points.device) for each in (self.centre, self.whitener, self.means)
        )
        # In double precision, and squares not expanded: points may lie close together far from the origin.
        offsets = points.movedim(1, -1).to(centre.dtype) - centre
        white = (offsets @ whitener).float()
        distances = torch.cdist(white.flatten(0, 2), means, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.amin(1).square().view(white.shape[:3])


class VirtualLogit(FittedScore):
    """ViM: how far a feature lies outside the principal subspace of known ones, as one logit more.

    The length of what is left of a feature outside the subspace, scaled so that its root mean square over the
    training cells is their mean highest logit, less the logsumexp of the logits: the log odds of the virtual
    logit. The subspace has half of the dimensions, through the mean of the features. For softmax heads,
    whose points are the features.
    """

    name = "vim"

    def __init__(self) -> None:
        self.centre: Tensor | None = None
        self.rest: Tensor | None = None

    def start(self) -> None:
        self.sums: ClassSums | None = None
        self.top_logits = torch.zeros(2, dtype=torch.float64)  # their sum and number

    def update(self, index: int, output: Output, labels: Tensor) -> None:
        """Add the labelled features of a batch, all as one class, and their highest logits."""
        points, _ = labelled_points(self._features(output), labels)
        if len(points) == 0:
            return
        if self.sums is None:
            self.sums = ClassSums(1, points.shape[1], points.device)
        self.sums.update(points, torch.zeros(len(points), dtype=torch.int64, device=points.device))
        top, _ = labelled_points(output.logits.amax(1, keepdim=True), labels)
        self.top_logits += torch.tensor([float(top.double().sum()), float(len(top))], dtype=torch.float64)

    def finish(self) -> None:
        """Centre (d) of the features, and the directions (d r) outside the subspace, scaled."""
        sums = _sums_of_all(self.name, self.sums)
        total, count = distributed.sum_over_processes(self.top_logits)
        variances, directions = torch.linalg.eigh(sums.within().cpu().double())  # the smallest first
        outside = len(variances) - max(1, len(variances) // 2)
        length = variances[:outside].clamp_min(0).sum().sqrt().clamp_min(1e-12)
        self.centre = sums.centre().float().cpu()
        self.rest = (directions[:, :outside] * (total / count / length)).float()

    def __call__(self, output: Output) -> Tensor:
        features = self._features(output).float().movedim(1, -1)
        centre, rest = (_fitted(self.name, each).to(features.device) for each in (self.centre, self.rest))
        virtual = ((features - centre) @ rest).norm(dim=-1)
        return virtual - output.logits.float().logsumexp(1)

    def _features(self, output: Output) -> Tensor:
        if output.evidence is not None:
            raise ValueError(
                f"{self.name}: it reads the features before a softmax classifier; for a GMM model use nll, "
                "or fused (gmmseg fit)"
            )
        return of_cells(self.name, output.points)


class NearestNeighbours(FittedScore):
    """Distance of a point to its ``neighbours``-th nearest in a random bank of training points.

    A hash of (seed, batch, place in the batch) says which points are drawn, so that the bank is the same
    however the batches are split over processes.
    """

    name = "knn"

    def __init__(self, neighbours: int = 1, *, bank_size: int = 10_000, seed: int = 0) -> None:
        self.neighbours = neighbours
        self.bank_size = bank_size
        self.seed = seed
        self.bank: Tensor | None = None

    def start(self) -> None:
        self.candidates, self.places = torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64)

    def update(self, index: int, output: Output, labels: Tensor) -> None:
        """Keep the ``bank_size`` points with the lowest tickets among those kept and these."""
        points = labelled_points(of_cells(self.name, output.points), labels)[0].float().cpu()
        places = torch.arange(len(points)) + index * MOST_POINTS_OF_A_BATCH
        known = self.candidates.view(len(self.candidates), points.shape[1])
        self._keep(torch.cat([known, points]), torch.cat([self.places, places]))

    def finish(self) -> None:
        """The bank (n d): the points with the lowest tickets of all processes, in the tickets' order."""
        dim = max(distributed.gather_objects(self.candidates.shape[1]))
        points = distributed.gather_rows(self.candidates.view(len(self.candidates), dim))
        self._keep(points, distributed.gather_rows(self.places))
        bank = self.candidates
        self.start()
        if len(bank) == 0:
            raise ValueError(f"{self.name}: {NOTHING_SEEN}")
        if len(bank) < self.neighbours:
            raise ValueError(f"{self.name}: {len(bank)} training points for {self.neighbours} neighbours")
        self.bank = bank

    def _keep(self, points: Tensor, places: Tensor) -> None:
        order = places.argsort()
        order = order[hashed(places[order], self.seed).argsort(stable=True)][: self.bank_size]
        self.candidates, self.places = points[order], places[order]

    def __call__(self, output: Output) -> Tensor:
        points = of_cells(self.name, output.points).float().movedim(1, -1)
        bank = _fitted(self.name, self.bank).to(points.device)
        nearest = [
            torch.cdist(chunk, bank).kthvalue(self.neighbours, dim=1).values
            for chunk in points.flatten(0, 2).split(4096)
        ]
        return torch.cat(nearest).view(points.shape[:3])


FITTED = (StandardisedMaxLogit, Mahalanobis, VirtualLogit, NearestNeighbours)
"""Scores that need statistics of training images."""


def labelled_points(points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n d) of points (b d h w) and labels (n), of labels (b H W) taken at the points' resolution."""
    near = F.interpolate(labels[:, None].float(), size=points.shape[-2:], mode="nearest-exact")[:, 0].long()
    near = near.to(points.device)
    valid = near != IGNORE
    return points.movedim(1, -1)[valid], near[valid]


def _sums_of_all(name: str, sums: ClassSums | None) -> ClassSums:
    """The sums of all processes; one that went through no batch has none."""
    known = [each for each in distributed.gather_objects(sums) if each is not None]
    if not known:
        raise ValueError(f"{name}: {NOTHING_SEEN}")
    for more in known[1:]:
        known[0].add_(more)
    return known[0]


def _fitted(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(f"{name}: call fit on training batches first")
    return value
