"""Several processes as one: who this process is, which part of the work is its own, what all agree on.

The only module that talks to torch.distributed. With a single process everything here is the identity, so
callers need not ask.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")
Say = Callable[[str], object]
"""Is told a line for the user."""


def several() -> bool:
    """Whether this process is one of several that work together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this process, from 0; process 0 is the one that writes files."""
    return dist.get_rank() if several() else 0


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if several() else 1


def shard(length: int) -> range:
    """The indices of 0 .. length - 1 that this process goes through; every index belongs to one process."""
    return range(rank(), length, world_size())


def said_once(say: Say | None) -> Say:
    """``say`` as process 0 alone says it; where nobody listens, a function that says nothing.

    Each message asks which process this is: the processes may find each other after this was made.
    """

    def once(message: str) -> None:
        if say is not None and rank() == 0:
            say(message)

    return once


def sum_over_processes(values: Tensor) -> Tensor:
    """The element-wise sum of ``values`` over all processes, on every one of them."""
    if not several():
        return values
    total = _movable(values).clone()
    dist.all_reduce(total)
    return total.to(values.device)


def gather_rows(rows: Tensor) -> Tensor:
    """Rows (n ...) of all processes, in the order of the processes, which may hold different numbers."""
    if not several():
        return rows
    sent = _movable(rows)
    count = torch.tensor(len(sent), device=sent.device)
    counts = [torch.empty_like(count) for _ in range(world_size())]
    dist.all_gather(counts, count)
    padded = sent.new_zeros(int(torch.stack(counts).max()), *sent.shape[1:])
    padded[: len(sent)] = sent
    everywhere = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(everywhere, padded)
    return torch.cat([block[: int(n)] for block, n in zip(everywhere, counts)]).to(rows.device)


def rows_before(count: int) -> int:
    """How many rows the processes before this one hold, if this one holds ``count``; for `gather_rows`."""
    return int(gather_rows(torch.tensor([count]))[: rank()].sum())


def gather_objects(value: Value) -> list[Value]:
    """Small plain values of all processes, in their order: numbers, texts, tuples of them."""
    if not several():
        return [value]
    everywhere: list[Value] = [value] * world_size()
    dist.all_gather_object(everywhere, value)
    return everywhere


def sum_of_those_with_values(values: Tensor | None) -> Tensor | None:
    """`sum_over_processes` where some processes, or all, have nothing to add; None if all have nothing."""
    mine = None if values is None else (values.shape, values.dtype)
    known = [each for each in gather_objects(mine) if each is not None]
    if not known:
        return None
    shape, dtype = known[0]
    return sum_over_processes(torch.zeros(shape, dtype=dtype) if values is None else values)


def any_process(flag: bool) -> bool:
    """Whether ``flag`` is true on any process: the same answer everywhere, so that all act alike."""
    return bool(sum_over_processes(torch.tensor(int(flag))))


def copy_from_main(tensors: Iterable[Tensor]) -> None:
    """Give ``tensors`` on every process the values they have on process 0, in place."""
    if several():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def wait_for_all() -> None:
    """Return when every process has come this far."""
    if several():
        dist.barrier()


def leave() -> None:
    """Part from the other processes in order: left to the interpreter's exit, their threads may abort it."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def collective_device() -> torch.device:
    """Where tensors must be for the processes to exchange them."""
    on_gpu = several() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _movable(values: Tensor) -> Tensor:
    """``values`` where the process group can take them: NCCL speaks only to GPUs, gloo to either."""
    return values.to(collective_device()) if dist.get_backend() == "nccl" else values
