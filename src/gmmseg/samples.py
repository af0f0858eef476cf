"""What data sets hand out and what the loop receives: one labelled image, and a batch of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
    images = torch.stack([sample.image for sample in samples]).float().div_(255)
    labels = torch.stack([sample.labels for sample in samples]).long()
    return Batch(images, labels, [sample.name for sample in samples])
