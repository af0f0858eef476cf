"""A data set kept in memory once read."""

from torch import Tensor

from gmmseg.data.wrapped import WrappedDataset
from gmmseg.samples import FingerprintedDataset, Sample


class CachedDataset(WrappedDataset):
    """``dataset``, each sample read (or drawn) the first time it is asked for and kept from then on.

    Worth it for small sets and few workers: each worker process keeps its own.
    """

    def __init__(self, dataset: FingerprintedDataset) -> None:
        super().__init__(dataset)
        self._samples: dict[int, Sample] = {}

    def __getitem__(self, index: int) -> Sample:
        if index not in self._samples:
            self._samples[index] = self.dataset[index]
        return self._samples[index]

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample, which is then kept."""
        return self[index].labels
