"""Which points of a batch EM looks at, the same ones however the batch is split over processes.

Random choices depend on a hash of (seed, index of the point in the global batch), not on a generator's
position, so that one process with eight images and two processes with four choose alike.
"""

import torch
from torch import Tensor

from gmmseg import distributed

_HASH_BITS = 31
_HASH_MASK = (1 << _HASH_BITS) - 1


def sample_points(
    points: Tensor, labels: Tensor, groups: Tensor, *, num_classes: int, per_group: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Up to ``per_group`` points of each class from each group (image) of the global batch.

    Takes this process's points (n d), labels (n), groups (n, counted from 0); labels outside the classes
    are left out. Returns points (s d) and labels (s) of all processes, sorted by label and otherwise
    in an order that depends on the global batch alone. Only the sampled points travel.
    """
    first_point, first_group, num_groups = _place_in_global_batch(len(labels), groups)
    index = ((labels >= 0) & (labels < num_classes)).nonzero().squeeze(1)
    tickets = hashed(index + first_point, seed)
    labels = labels[index]
    chosen = draw(labels * num_groups + groups[index] + first_group, tickets, per_group)
    labels, tickets, sampled = labels[chosen], tickets[chosen], points[index[chosen]]
    labels, tickets, sampled = (distributed.gather_rows(each) for each in (labels, tickets, sampled))
    # Within a class the images are shuffled together, so that any first few points are a fair sample.
    order = ((labels << _HASH_BITS) | tickets).argsort(stable=True)
    return sampled[order], labels[order]


def draw(cells: Tensor, tickets: Tensor, most: int) -> Tensor:
    """Indices of the ``most`` points with the lowest tickets (n, 31 bits) in each cell (n), cell by cell."""
    # One sort puts the points of a cell side by side, in the order of their tickets.
    key, order = ((cells << _HASH_BITS) | tickets).sort()
    cells = key >> _HASH_BITS
    place = torch.arange(len(cells), device=cells.device) - torch.searchsorted(cells, cells)
    return order[place < most]


def evenly_spaced(cells: Tensor, most: int) -> Tensor:
    """Which points (n) bool to keep so that no cell (n, int64) keeps more than ``most``, evenly in order.

    Of a cell with n points in the order they come, those at places floor(i n / most), i = 0 .. most - 1.
    """
    order = cells.argsort(stable=True)
    _, counts = cells[order].unique_consecutive(return_counts=True)
    size = counts.repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    place = torch.arange(len(cells), device=cells.device) - first
    step = -((-place * most) // size)  # the least i whose place is not before this one: a ceiling
    kept = (size <= most) | ((step < most) & (step * size // most == place))
    return torch.zeros_like(cells, dtype=torch.bool).index_put_((order,), kept)


def hashed(index: Tensor, seed: int) -> Tensor:
    """A well-mixed 31-bit number per index (int64); multiplication wraps around, as it should."""
    value = index + (seed * 0x9E3779B1 + 0x7F4A7C15) % (1 << 61)
    for multiplier in (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85):
        value = value * multiplier
        value = value ^ ((value >> 29) & ((1 << 35) - 1))
    return value & _HASH_MASK


def _place_in_global_batch(num_points: int, groups: Tensor) -> tuple[int, int, int]:
    """(points before this process's, groups before this process's, groups in all)."""
    num_groups = int(groups.max()) + 1 if len(groups) else 0
    sizes = distributed.gather_rows(torch.tensor([[num_points, num_groups]], device=groups.device))
    before = sizes[: distributed.rank()].sum(0)
    return int(before[0]), int(before[1]), max(int(sizes[:, 1].sum()), 1)
