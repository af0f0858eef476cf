"""What EM remembers of earlier batches, in two interchangeable forms.

Both answer `recall` with the moments of what they remember and take a batch with `write`. Statistics forget
in `fade_`, a queue when newer points push out older ones. Points come padded per class: ``p`` classes present
in the batch, at most ``m`` points each, with responsibilities (p m k), zero at absent points.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Sums over points, per component: weight (p k), total (p k d), squares (p k d), in double precision."""

    weight: Tensor
    total: Tensor
    squares: Tensor

    def __add__(self, other: "Moments") -> "Moments":  # type: ignore[override]
        return Moments(self.weight + other.weight, self.total + other.total, self.squares + other.squares)


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Double precision, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


class Memory(Protocol):
    """What OnlineEM asks of a memory. ``classes`` (p) are class ids."""

    def fade_(self, classes: Tensor, forgetting_scales: Tensor) -> None:
        """Forget what one batch makes these classes forget, times ``forgetting_scales`` (p) in [0, 1]."""

    def recall(self, classes: Tensor) -> Moments:
        """Moments of what is remembered of these classes."""

    def write(self, classes: Tensor, points: Tensor, responsibilities: Tensor, gained: Moments) -> None:
        """Remember points (p m d), their responsibilities (p m k) and moments; other classes stay."""

    def weight(self) -> Tensor:
        """How many points stand behind each component, (c k)."""

    def arrived(self) -> Tensor:
        """How many points came to each component, (c k), as far back as the memory reaches: their shares
        within a class say how much a component is used, also where full queues all hold the same number."""

    def forget_(self, components: Tensor) -> None:
        """Empty the components marked in a boolean (c k)."""

    def nbytes(self) -> int:
        """Bytes held."""

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class DecayedStatistics:
    """Moments of everything seen, forgotten exponentially: kilobytes, whatever the length of the memory.

    At a forgetting scale of 1 a batch leaves ``decay`` of what is known of a class it holds, so that the
    memory reaches back 1/(1-decay) such batches.
    """

    def __init__(
        self,
        num_classes: int,
        num_components: int,
        dim: int,
        *,
        decay: float,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self.decay = decay
        dtype = accumulator_dtype(torch.device(device))
        shape = (num_classes, num_components)
        self.remembered = Moments(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(*shape, dim, dtype=dtype, device=device),
            torch.zeros(*shape, dim, dtype=dtype, device=device),
        )

    def fade_(self, classes: Tensor, forgetting_scales: Tensor) -> None:
        kept = 1.0 - (1.0 - self.decay) * forgetting_scales
        for each in self.remembered:
            each[classes] *= kept.to(each).view(-1, *(1 for _ in each.shape[1:]))

    def recall(self, classes: Tensor) -> Moments:
        return Moments(*(each[classes] for each in self.remembered))

    def write(self, classes: Tensor, points: Tensor, responsibilities: Tensor, gained: Moments) -> None:
        for each, new in zip(self.remembered, gained):
            each[classes] += new

    def weight(self) -> Tensor:
        return self.remembered.weight

    def arrived(self) -> Tensor:
        return self.remembered.weight

    def forget_(self, components: Tensor) -> None:
        for each in self.remembered:
            each[components] = 0.0

    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.remembered)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: each.clone() for name, each in self.remembered._asdict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, each in self.remembered._asdict().items():
            each.copy_(state[name])


class FeatureQueue:
    """The paper's memory: per (class, component) the last ``capacity`` points, first in, first out.

    Empty at the start; ``written`` (c k) counts the points ever written to a queue and so gives its fill
    and its cursor. A point enters the queue of the component with its largest responsibility. The queues'
    moments are kept up to date as points come and go, so recalling them costs nothing.
    """

    def __init__(
        self,
        num_classes: int,
        num_components: int,
        dim: int,
        *,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < 0:
            raise ValueError(f"a queue cannot hold {capacity} points")
        self.capacity = capacity
        shape = (num_classes, num_components)
        self.slots = torch.zeros(*shape, capacity, dim, dtype=dtype, device=device)
        self.written = torch.zeros(shape, dtype=torch.int64, device=device)
        sums = torch.zeros(*shape, dim, dtype=accumulator_dtype(torch.device(device)), device=device)
        self.total, self.squares = sums, sums.clone()
        self.arrivals = sums[..., 0].clone()

    def fade_(self, classes: Tensor, forgetting_scales: Tensor) -> None:
        """Nothing: a queue forgets what newer points push out."""

    def recall(self, classes: Tensor) -> Moments:
        return Moments(self.weight()[classes], self.total[classes], self.squares[classes])

    def write(self, classes: Tensor, points: Tensor, responsibilities: Tensor, gained: Moments) -> None:
        self._count_arrivals(classes, gained.weight)
        if self.capacity == 0:
            return
        k = responsibilities.shape[-1]
        # Queues are numbered class * k + component; only places that hold a point are written.
        present = responsibilities.sum(-1) > 0
        queue = (classes[:, None] * k + responsibilities.argmax(-1))[present]
        order = queue.argsort(stable=True)
        queue, arriving = queue[order], points[present][order]
        counts = torch.bincount(queue, minlength=self.written.numel())
        position = torch.arange(len(queue), device=queue.device) - (counts.cumsum(0) - counts)[queue]
        # More arrivals than the queue holds: the first of them would be overwritten at once.
        kept = position >= counts[queue] - self.capacity
        slot = (self.written.view(-1)[queue] + position) % self.capacity
        self._replace(queue[kept], slot[kept], arriving[kept])
        self.written += counts.view_as(self.written)

    def _count_arrivals(self, classes: Tensor, gained: Tensor) -> None:
        """Add the points (p k) that came; where a class overflows, old counts fade by as much."""
        held = self.capacity * gained.shape[1]
        known = self.arrivals[classes]
        overflow = (known.sum(1) + gained.sum(1) - held).clamp_min(0.0)
        kept = 1.0 - overflow / known.sum(1).clamp_min(1e-12)
        self.arrivals[classes] = known * kept.clamp(0.0, 1.0)[:, None] + gained

    def _replace(self, queue: Tensor, slot: Tensor, arriving: Tensor) -> None:
        flat = self.slots.view(-1, *self.slots.shape[2:])
        leaving = flat[queue, slot].to(self.total.dtype)  # zeros where nothing was written yet
        flat[queue, slot] = arriving.to(flat.dtype)
        entering = flat[queue, slot].to(self.total.dtype)  # what was stored, so that it leaves as it came
        self.total.view(-1, arriving.shape[-1]).index_add_(0, queue, entering - leaving)
        self.squares.view(-1, arriving.shape[-1]).index_add_(0, queue, entering.square() - leaving.square())

    def weight(self) -> Tensor:
        return self.written.clamp_max(self.capacity).to(self.total.dtype)

    def arrived(self) -> Tensor:
        return self.arrivals

    def forget_(self, components: Tensor) -> None:
        for each in (self.slots, self.written, self.total, self.squares, self.arrivals):
            each[components] = 0

    def nbytes(self) -> int:
        return self.slots.nbytes + self.written.nbytes + self.total.nbytes + self.squares.nbytes

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on, without the slots no queue has reached yet."""
        filled = int(self.written.max().clamp_max(self.capacity))
        return {
            "capacity": torch.tensor(self.capacity),
            "slots": self.slots[:, :, :filled].clone(),
            "written": self.written.clone(),
            "total": self.total.clone(),
            "squares": self.squares.clone(),
            "arrivals": self.arrivals.clone(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if int(state["capacity"]) != self.capacity:
            raise ValueError(
                f"the saved queue holds {int(state['capacity'])} points, this one {self.capacity}: "
                "set memory_size to the saved value to continue"
            )
        filled = state["slots"].shape[2]
        self.slots.zero_()
        self.slots[:, :, :filled] = state["slots"]
        for name in ("written", "total", "squares"):
            getattr(self, name).copy_(state[name])
        # Missing in states written before it was counted: what is held is the best guess.
        self.arrivals.copy_(state.get("arrivals", self.weight()))
