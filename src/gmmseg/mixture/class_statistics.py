"""What is kept of labelled points that are seen once: sums by class, and a bounded sample of each class."""

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.mixture.memory import accumulator_dtype
from gmmseg.mixture.sampling import draw, hashed

MOST_POINTS_OF_A_BATCH = 1 << 32
"""Point n of batch i has number i * MOST_POINTS_OF_A_BATCH + n among all points, whoever sees the batch."""
_HIGHEST_TICKET = (1 << 31) - 1


class ClassSums:
    """Counts (c), totals (c d) and products (d d) of points, from which come centre and covariance.

    Sums are of offsets from the first batch's mean: far from the origin, products lose digits.
    """

    def __init__(self, num_classes: int, dim: int, device: torch.device | str = "cpu") -> None:
        dtype = accumulator_dtype(torch.device(device))
        self.origin = torch.zeros(dim, dtype=dtype, device=device)
        self.counts = torch.zeros(num_classes, dtype=dtype, device=device)
        self.totals = torch.zeros(num_classes, dim, dtype=dtype, device=device)
        self.products = torch.zeros(dim, dim, dtype=dtype, device=device)

    def update(self, points: Tensor, labels: Tensor) -> None:
        """Add points (n d) of classes labels (n)."""
        if len(points) == 0:
            return
        points = points.to(self.origin)
        if not bool(self.counts.any()):
            self.origin.copy_(points.mean(0))
        offsets = points - self.origin
        self.counts.index_add_(0, labels, torch.ones_like(offsets[:, 0]))
        self.totals.index_add_(0, labels, offsets)
        self.products.addmm_(offsets.T, offsets)

    def add_(self, other: "ClassSums") -> None:
        """Take in what ``other`` has seen, whose origin is another one."""
        counts, totals, products = (
            each.to(self.origin) for each in (other.counts, other.totals, other.products)
        )
        shift = other.origin.to(self.origin) - self.origin
        cross = torch.outer(totals.sum(0), shift)
        self.counts += counts
        self.totals += totals + counts[:, None] * shift
        self.products += products + cross + cross.T + counts.sum() * torch.outer(shift, shift)

    def merge_processes(self) -> None:
        """Take in what all processes have seen; one that has seen nothing takes part."""
        everywhere = distributed.gather_objects(self)
        first = next((each for each in everywhere if bool(each.counts.any())), self)
        # All start from the same origin and add in the same order, so that all get the very same sums.
        total = ClassSums(len(self.counts), len(self.origin), self.origin.device)
        total.origin.copy_(first.origin)
        for each in everywhere:
            total.add_(each)
        self.origin, self.counts, self.totals, self.products = (
            total.origin,
            total.counts,
            total.totals,
            total.products,
        )

    def centre(self) -> Tensor:
        """Mean (d) of all points."""
        return self.origin + self.totals.sum(0) / self.counts.sum()

    def within(self) -> Tensor:
        """Covariance (d d) of points about the mean of their own class, over all points."""
        means = self.totals / self.counts.clamp_min(1)[:, None]
        return (self.products - means.T @ self.totals) / self.counts.sum()


class ClassSample:
    """A uniform random choice of at most ``most`` points of each class, on the CPU.

    Each point draws a ticket, a hash of (seed, batch, place in the batch); the lowest tickets stay. So the
    choice does not depend on who has seen which batch. While new points are merged with those kept, memory
    is that of at most four times as many and one batch.
    """

    def __init__(self, num_classes: int, dim: int, *, most: int, seed: int = 0) -> None:
        self.most, self.seed = most, seed
        self.highest = torch.full((num_classes,), _HIGHEST_TICKET)
        empty = torch.zeros(0, dtype=torch.int64)
        self.kept: tuple[Tensor, Tensor, Tensor] = (torch.zeros(0, dim), empty, empty)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(self, points: Tensor, labels: Tensor, batch: int) -> None:
        """Take in points (n d) of classes labels (n), all of the batch with the number ``batch``."""
        tickets = hashed(torch.arange(len(labels)) + batch * MOST_POINTS_OF_A_BATCH, self.seed)
        known = labels.cpu()
        chosen = (tickets <= self.highest[known]).nonzero().squeeze(1)
        rows = points[chosen.to(points.device)].float().cpu()
        self.waiting.append((rows, known[chosen], tickets[chosen]))
        if sum(len(each[1]) for each in self.waiting) > self.most * len(self.highest) // 4:
            self._merge()

    def merge_processes(self) -> None:
        """Take in what all processes have kept."""
        self._merge()
        self.waiting = [tuple(distributed.gather_rows(each) for each in self.kept)]  # type: ignore[list-item]
        self.kept = tuple(each[:0] for each in self.kept)  # type: ignore[assignment]
        self._merge()

    def points_and_labels(self) -> tuple[Tensor, Tensor]:
        """The points (m d) kept so far and their labels (m), class by class."""
        self._merge()
        points, labels, _ = self.kept
        return points, labels

    def _merge(self) -> None:
        points, labels, tickets = (torch.cat(each) for each in zip(self.kept, *self.waiting))
        drawn = draw(labels, tickets, self.most)
        self.kept, self.waiting = (points[drawn], labels[drawn], tickets[drawn]), []
        # Where a class is full, no ticket above its highest can enter any more.
        full = torch.bincount(self.kept[1], minlength=len(self.highest)) >= self.most
        highest = torch.zeros_like(self.highest).scatter_reduce(0, self.kept[1], self.kept[2], "amax")
        self.highest = torch.where(full, highest, _HIGHEST_TICKET)
