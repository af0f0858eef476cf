"""What a data set is and hands out, what training receives, and the one way through a data set."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.images import to_unit_range
from gmmseg.labels import LabelSpace, difference_of_classes

Progress = Callable[[int, int | None, str], None]
"""Is told how many are done, of how many (None: nobody knows yet), and the name of the last one."""


@dataclass(frozen=True)
class Sample:
    """One image with its labels.

    ``image`` (3 h w) uint8 RGB; ``labels`` (h w) uint8: train ids and IGNORE, or, in an anomaly set,
    0 normal, 1 anomaly and IGNORE; ``name`` says where it came from, in messages and file names.
    """

    image: Tensor
    labels: Tensor
    name: str

    def __post_init__(self) -> None:
        if self.image.shape[-2:] != self.labels.shape:
            raise ValueError(
                f"{self.name}: image {tuple(self.image.shape[-2:])} and labels {tuple(self.labels.shape)} "
                "differ in size; an image and its label map must have the same height and width"
            )


@dataclass(frozen=True)
class Batch:
    """Samples of one size stacked: ``images`` (b 3 h w) float32 in [0, 1]; ``labels`` (b h w) int64."""

    images: Tensor
    labels: Tensor
    names: list[str]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on ``device``."""
        images = self.images.to(device, non_blocking=non_blocking)
        return Batch(images, self.labels.to(device, non_blocking=non_blocking), self.names)

    def pin_memory(self) -> "Batch":
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.names)


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples of equal size -> Batch; for a DataLoader's ``collate_fn``."""
    sizes = {tuple(sample.labels.shape) for sample in samples}
    if len(sizes) != 1:
        raise ValueError(
            f"a batch needs images of one size, got {sorted(sizes)} from {[s.name for s in samples]}; "
            "crop them in the transform, or use a batch size of 1"
        )
    images = to_unit_range(torch.stack([sample.image for sample in samples]))
    labels = torch.stack([sample.labels for sample in samples]).long()
    return Batch(images, labels, [sample.name for sample in samples])


class SegmentationDataset(Protocol):
    """Labelled images by index, whoever reads, draws or changes them.

    ``label_space`` holds the classes; None where labels are anomaly masks (0 normal, 1 anomaly, IGNORE).
    ``root`` is the folder of the files; None where there are none.
    """

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def root(self) -> Path | None: ...
    @property
    def label_space(self) -> LabelSpace | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...
    def labels(self, index: int, /) -> Tensor:
        """Labels (h w) uint8 of one sample, without its image where that saves time."""
        ...


class FingerprintedDataset(SegmentationDataset, Protocol):
    """A data set that also knows whether its labels have changed since they were last read."""

    def content(self) -> str:
        """Text that is another one as soon as a label may be another one."""
        ...


def walk(
    dataset: SegmentationDataset, progress: Progress | None = None, indices: Iterable[int] | None = None
) -> Iterator[Sample]:
    """The samples at ``indices``, one after the other; by default those of this process.

    With several processes each sample is seen by one of them. ``progress`` is told after each sample.
    """
    total = len(dataset)
    if total == 0:
        raise ValueError(f"{dataset.name}, split {dataset.split}: there are no images in it")
    for index in distributed.shard(total) if indices is None else indices:
        sample = dataset[index]
        yield sample
        if progress:
            progress(index + 1, total, sample.name)


def check_classes(
    dataset: SegmentationDataset, num_classes: int, label_names: Sequence[str] | None = None
) -> LabelSpace:
    """The classes of ``dataset``; ValueError unless it is labelled with as many as the model has.

    Given the names of the model's classes, the set's must not contradict them.
    """
    if dataset.label_space is None:
        raise ValueError(
            f"{dataset.name} marks what is unknown, not classes: give labelled images of the model's classes"
        )
    if len(dataset.label_space) != num_classes:
        raise ValueError(
            f"{dataset.name} has {len(dataset.label_space)} classes, the model {num_classes}: "
            "a model can only be judged on the classes it was trained for"
        )
    difference = label_names and difference_of_classes(label_names, dataset.label_space.names)
    if difference:
        raise ValueError(f"{dataset.name} has {difference}: give labelled images of the model's classes")
    return dataset.label_space
