"""A data set seen through a random transform, reproducibly."""

from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from gmmseg.data.wrapped import WrappedDataset
from gmmseg.samples import FingerprintedDataset, Sample


class Transform(Protocol):
    """Sample -> Sample, drawing from ``generator`` (torch's own when None)."""

    def __call__(self, sample: Sample, generator: Generator | None = None) -> Sample: ...


class AugmentedDataset(WrappedDataset):
    """``dataset`` seen through ``transform``, whose draws depend on (seed, epoch, index) and on nothing else.

    So the stream of samples is the same with any number of workers, and a resumed run sees what the
    interrupted one would have seen. An index beyond the length is another look at sample ``index %
    len(dataset)``, differently drawn: a sampler that repeats a sample within an epoch counts the
    repetitions that way.
    """

    def __init__(self, dataset: FingerprintedDataset, transform: Transform, seed: int = 0) -> None:
        super().__init__(dataset)
        self.transform, self.seed = transform, seed
        # Shared memory: workers that live through several epochs see the change.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """To be called before each pass; workers already running follow."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> Sample:
        if index < 0:
            raise ValueError(f"negative index {index}: indices count looks at samples, from 0 up")
        key = np.random.SeedSequence((self.seed, self.epoch, index)).generate_state(1, np.uint64)[0]
        generator = Generator().manual_seed(int(key >> 1))
        return self.transform(self.dataset[index % len(self.dataset)], generator)

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one look, as the transform leaves them."""
        return self[index].labels
