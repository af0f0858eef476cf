"""Part of a data set."""

from torch import Tensor

from gmmseg.data.wrapped import WrappedDataset
from gmmseg.samples import FingerprintedDataset, Sample


class EvenlySpaced(WrappedDataset):
    """At most ``count`` samples of ``dataset``, evenly spaced: neighbours in a set are often much alike."""

    def __init__(self, dataset: FingerprintedDataset, count: int) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        super().__init__(dataset)
        self.count = min(count, len(dataset))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[self._place(index)]

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self.dataset.labels(self._place(index))

    def content(self) -> str:
        """What the data set inside says of its labels, and how many of them are taken."""
        return f"{self.dataset.content()} {self.count}"

    def _place(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return index * len(self.dataset) // self.count
