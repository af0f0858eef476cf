"""Which points of a batch EM looks at, the same ones however the batch is split over processes.

Random choices hang on a hash of (seed, index of the point in the global batch), not on a generator's
position, so that one process with eight images and two processes with four choose alike.
"""

import torch
import torch.distributed as dist
from torch import Tensor

_HASH_BITS = 31
_HASH_MASK = (1 << _HASH_BITS) - 1


def sample_points(
    points: Tensor, labels: Tensor, groups: Tensor, *, num_classes: int, per_group: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Up to ``per_group`` points of each class from each group (image) of the global batch.

    Takes this process's points (n d), labels (n), groups (n, counted from 0); labels outside the classes
    are passed over. Returns points (s d) and labels (s) of all processes, sorted by label and otherwise
    in an order that depends on the global batch alone. Only the sampled points travel.
    """
    first_point, first_group, num_groups = _place_in_global_batch(len(labels), groups)
    index = ((labels >= 0) & (labels < num_classes)).nonzero().squeeze(1)
    tickets = _hash(index + first_point, seed)
    labels = labels[index]
    chosen = draw(labels * num_groups + groups[index] + first_group, tickets, per_group)
    labels, tickets, sampled = labels[chosen], tickets[chosen], points[index[chosen]]
    if _is_distributed():
        labels, tickets, sampled = _gather(labels), _gather(tickets), _gather(sampled)
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


def _hash(index: Tensor, seed: int) -> Tensor:
    """A well-mixed 31-bit number per index (int64); multiplication wraps around, as it should."""
    value = index + (seed * 0x9E3779B1 + 0x7F4A7C15) % (1 << 61)
    for multiplier in (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85):
        value = value * multiplier
        value = value ^ ((value >> 29) & ((1 << 35) - 1))
    return value & _HASH_MASK


def _place_in_global_batch(num_points: int, groups: Tensor) -> tuple[int, int, int]:
    """(points before this process's, groups before this process's, groups in all)."""
    num_groups = int(groups.max()) + 1 if len(groups) else 0
    if not _is_distributed():
        return 0, 0, max(num_groups, 1)
    here = torch.tensor([num_points, num_groups], device=groups.device)
    everywhere = [torch.empty_like(here) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, here)
    sizes = torch.stack(everywhere)
    before = sizes[: dist.get_rank()].sum(0)
    return int(before[0]), int(before[1]), max(int(sizes[:, 1].sum()), 1)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_processes(values: Tensor) -> Tensor:
    """The element-wise sum of ``values`` over all processes."""
    if _is_distributed():
        values = values.clone()
        dist.all_reduce(values)
    return values


def _gather(rows: Tensor) -> Tensor:
    """Rows (n ...) of all processes, one after the other; processes may hold different numbers of rows."""
    count = torch.tensor(len(rows), device=rows.device)
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    longest = int(torch.stack(counts).max())
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    everywhere = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(everywhere, padded)
    return torch.cat([block[: int(n)] for block, n in zip(everywhere, counts)])
