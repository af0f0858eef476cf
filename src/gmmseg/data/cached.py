"""A data set kept in memory once read."""

from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.samples import Sample


class CachedDataset(Dataset[Sample]):
    """``dataset``, each sample read (or drawn) the first time it is asked for and kept from then on.

    Worth it for small sets and few workers: each worker process keeps its own.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.name, self.split = dataset, dataset.name, dataset.split
        self.label_space, self.root = dataset.label_space, getattr(dataset, "root", None)
        self._samples: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        if index not in self._samples:
            self._samples[index] = self.dataset[index]
        return self._samples[index]

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self[index].labels
