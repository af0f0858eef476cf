"""An open world made of a closed one: classes hidden from training are the unknown of the test."""

import torch
from torch import Tensor

from gmmseg.data.wrapped import WrappedDataset
from gmmseg.labels import IGNORE, LabelSpace
from gmmseg.samples import FingerprintedDataset, Sample


class RelabelledDataset(WrappedDataset):
    """``dataset`` with other labels: ``table`` (256) uint8 holds the new value of every old one."""

    def __init__(self, dataset: FingerprintedDataset, table: Tensor) -> None:
        super().__init__(dataset)
        self._table = table

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        return Sample(sample.image, self._table[sample.labels.long()], sample.name)

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self._table[self.dataset.labels(index).long()]


class WithoutClasses(RelabelledDataset):
    """``dataset`` with the classes ``hidden`` taken out: their pixels are IGNORE, the others closed up."""

    def __init__(self, dataset: FingerprintedDataset, hidden: tuple[str, ...]) -> None:
        space = _classes(dataset, hidden)
        kept = [index for index, name in enumerate(space.names) if name not in hidden]
        table = torch.full((IGNORE + 1,), IGNORE, dtype=torch.uint8)
        table[kept] = torch.arange(len(kept), dtype=torch.uint8)
        super().__init__(dataset, table)
        self.name = f"{dataset.name}_without_{'_'.join(hidden)}"
        self.label_space = LabelSpace(
            tuple(space.names[index] for index in kept), tuple(space.colours[index] for index in kept)
        )


class HiddenClasses(RelabelledDataset):
    """``dataset`` as an anomaly set: 1 where a class of ``hidden`` is, 0 on the others, IGNORE as before."""

    def __init__(self, dataset: FingerprintedDataset, hidden: tuple[str, ...]) -> None:
        space = _classes(dataset, hidden)
        table = torch.zeros(IGNORE + 1, dtype=torch.uint8)
        table[[space.names.index(name) for name in hidden]] = 1
        table[IGNORE] = IGNORE
        super().__init__(dataset, table)
        self.name = f"{dataset.name}_hidden_{'_'.join(hidden)}"
        self.label_space = None


def _classes(dataset: FingerprintedDataset, hidden: tuple[str, ...]) -> LabelSpace:
    """The classes of ``dataset``; ValueError unless ``hidden`` names some of them and leaves some."""
    space = dataset.label_space
    if space is None:
        raise ValueError(f"{dataset.name} marks what is unknown, not classes: none can be hidden")
    unknown = [name for name in hidden if name not in space.names]
    if unknown or not hidden or len(set(hidden)) >= len(space):
        raise ValueError(
            f"cannot hide {list(hidden)}: name some, not all, of the classes {', '.join(space.names)}"
        )
    return space
