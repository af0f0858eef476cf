"""A data set in the classes of a model, whatever order and names it has them in."""

from collections.abc import Sequence

import torch

from gmmseg.data.held_out import RelabelledDataset
from gmmseg.labels import IGNORE, LabelSpace
from gmmseg.samples import FingerprintedDataset


class MatchedClasses(RelabelledDataset):
    """``dataset`` labelled with ``space``, the classes of a model.

    ``places``: for each class of the data set the model's class that it is; None: none of them, ignored.
    """

    def __init__(
        self, dataset: FingerprintedDataset, space: LabelSpace, places: Sequence[int | None]
    ) -> None:
        table = torch.full((IGNORE + 1,), IGNORE, dtype=torch.uint8)
        for row, place in enumerate(places):
            if place is not None:
                table[row] = place
        super().__init__(dataset, table)
        self.label_space = space
