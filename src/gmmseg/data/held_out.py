"""An open world made of a closed one: classes hidden from training are the unknown of the test."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.labels import IGNORE, LabelSpace
from gmmseg.samples import Sample


class WithoutClasses(Dataset[Sample]):
    """``dataset`` with the classes ``hidden`` taken out: their pixels are IGNORE, the others closed up."""

    def __init__(self, dataset: Any, hidden: tuple[str, ...]) -> None:
        self.dataset, self.split = dataset, dataset.split
        self.root = getattr(dataset, "root", None)
        space: LabelSpace = dataset.label_space
        self.name = f"{dataset.name}_without_{'_'.join(hidden)}"
        kept = [index for index, name in enumerate(space.names) if name not in _known(space, hidden)]
        self.label_space = LabelSpace(
            tuple(space.names[index] for index in kept), tuple(space.colours[index] for index in kept)
        )
        self._table = torch.full((IGNORE + 1,), IGNORE, dtype=torch.uint8)
        self._table[kept] = torch.arange(len(kept), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        return Sample(sample.image, self._table[sample.labels.long()], sample.name)

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self._table[self.dataset.labels(index).long()]


class HiddenClasses(Dataset[Sample]):
    """``dataset`` as an anomaly set: 1 where a class of ``hidden`` is, 0 on the others, IGNORE as before."""

    label_space = None

    def __init__(self, dataset: Any, hidden: tuple[str, ...]) -> None:
        self.dataset, self.split = dataset, dataset.split
        self.root = getattr(dataset, "root", None)
        self.name = f"{dataset.name}_hidden_{'_'.join(hidden)}"
        ids = [dataset.label_space.names.index(name) for name in _known(dataset.label_space, hidden)]
        self._table = torch.zeros(IGNORE + 1, dtype=torch.uint8)
        self._table[ids] = 1
        self._table[IGNORE] = IGNORE

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[index]
        return Sample(sample.image, self._table[sample.labels.long()], sample.name)


def _known(space: LabelSpace, hidden: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in hidden if name not in space.names]
    if unknown or not hidden or len(set(hidden)) >= len(space):
        raise ValueError(
            f"cannot hide {list(hidden)}: name some, not all, of the classes {', '.join(space.names)}"
        )
    return hidden
