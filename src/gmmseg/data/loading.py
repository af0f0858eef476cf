"""Batches of one epoch after another, in an order that depends on (seed, epoch) alone."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import DataLoader, Sampler

from gmmseg.data.samplers import ClassBalancedSampler
from gmmseg.samples import Batch, collate

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class ShuffledSampler(Sampler[int]):
    """Every index once per epoch, in a random order; at least ``least`` of them, by going round again."""

    def __init__(self, samples: int, *, least: int = 0, seed: int = 0) -> None:
        self.samples, self.length, self.seed, self.epoch = samples, max(samples, least), seed, 0

    def set_epoch(self, epoch: int) -> None:
        """To be called before each pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        for start in range(0, self.length, self.samples):
            order = torch.randperm(self.samples, generator=generator)[: self.length - start]
            # A further round is another look at the same samples: see AugmentedDataset.
            yield from (order + start).tolist()


class EpochDataset(Protocol[Item_co]):
    """Items that may differ from epoch to epoch."""

    name: str

    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Item_co: ...


@runtime_checkable
class CountingLoader(Protocol):
    """A loader that counts epochs by itself, as one that accelerate has prepared does."""

    def set_epoch(self, epoch: int) -> None: ...


class EpochLoader:
    """Full batches of ``dataset`` in the order of ``sampler``; ``prepare`` may wrap the loader.

    ``collate`` makes a Batch of a list of the data set's items.
    """

    def __init__(
        self,
        dataset: EpochDataset[Item],
        sampler: ShuffledSampler | ClassBalancedSampler,
        batch_size: int,
        *,
        workers: int = 0,
        prepare: Callable[[DataLoader[Item]], DataLoader[Item]] = lambda loader: loader,
        collate: Callable[[list[Item]], Batch] = collate,  # type: ignore[assignment]  # of Samples
    ) -> None:
        if len(sampler) < batch_size:
            raise ValueError(
                f"{dataset.name}: {len(sampler)} images do not fill a batch of {batch_size}: lower batch_size"
            )
        self.dataset, self.sampler = dataset, sampler
        loader: DataLoader[Item] = DataLoader(
            dataset,  # type: ignore[arg-type]  # has what a DataLoader asks for
            batch_size=batch_size,
            sampler=sampler,
            num_workers=workers,
            collate_fn=collate,
            drop_last=True,
            persistent_workers=workers > 0,
            # Its own generator: torch's must not depend on how often a loader was started.
            generator=torch.Generator().manual_seed(0),
        )
        self.loader = prepare(loader)

    def set_epoch(self, epoch: int) -> None:
        """To be called before each pass."""
        self.dataset.set_epoch(epoch)
        self.sampler.set_epoch(epoch)
        if isinstance(self.loader, CountingLoader):
            # A prepared loader counts passes by itself, from 0 in a resumed run too, and tells the sampler.
            self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
