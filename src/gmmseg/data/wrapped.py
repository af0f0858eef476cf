"""A data set inside another one."""

from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.samples import FingerprintedDataset, Sample


class WrappedDataset(Dataset[Sample]):
    """``dataset`` as it is: what a subclass does not change is that of the data set inside."""

    def __init__(self, dataset: FingerprintedDataset) -> None:
        self.dataset = dataset
        self.name, self.split = dataset.name, dataset.split
        self.root, self.label_space = dataset.root, dataset.label_space

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return self.dataset[index]

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self.dataset.labels(index)

    def content(self) -> str:
        """What the data set inside says of its labels."""
        return self.dataset.content()
