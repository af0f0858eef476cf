"""Built-in street scenes: no download, drawn when asked for, the same for the same seed.

Ten classes, each with several looks, under five kinds of light. ``ScenesAnomaly`` shows the same kind of
street with things in it that no scene of ``Scenes`` holds.
"""

import numpy as np
import torch
from scipy.ndimage import binary_dilation, label
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.data.scenes.scenery import STRANGER, draw_scene
from gmmseg.data.spaces import load_label_space
from gmmseg.labels import IGNORE
from gmmseg.samples import Sample

LENGTHS = {"train": 600, "val": 100, "test": 200}
ANOMALY_LENGTHS = {"val": 60, "test": 300}
_STREAMS = {"train": 0, "val": 1, "test": 2}
_ANOMALY_STREAM = 10


def _check(split: str, lengths: dict[str, int], size: tuple[int, int]) -> None:
    if split not in lengths:
        raise ValueError(f"the built-in scenes have no split {split!r}; there are: {', '.join(lengths)}")
    if min(size) < 16:
        raise ValueError(f"scenes are at least 16 pixels high and wide, got {size}")


class Scenes(Dataset[Sample]):
    """Labelled street scenes of ``size`` (height, width); ``length`` of them, as many as wanted."""

    name = "scenes"
    root = None

    def __init__(
        self, split: str, *, size: tuple[int, int] = (96, 160), length: int | None = None, seed: int = 0
    ) -> None:
        _check(split, LENGTHS, size)
        self.split, self.size, self.seed = split, size, seed
        self.length = LENGTHS[split] if length is None else length
        self.label_space = load_label_space("scenes")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(index)
        image, labels = draw_scene((self.seed, _STREAMS[self.split], index), self.size, strangers=False)
        return _sample(image, labels, f"scenes_{self.split}_{index:05d}")

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        return self[index].labels

    def content(self) -> str:
        """What the scenes are drawn from."""
        return f"{self.seed} {self.size} {len(self)}"


class ScenesAnomaly(Dataset[Sample]):
    """Street scenes with unknown things: labels are 0 normal, 1 anomaly, IGNORE on a one pixel border round
    them.

    A few scenes hold no unknown thing at all. There is no train split, by intent.
    """

    name = "scenes_anomaly"
    root = None
    label_space = None

    def __init__(
        self,
        split: str = "test",
        *,
        size: tuple[int, int] = (96, 160),
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        _check(split, ANOMALY_LENGTHS, size)
        self.split, self.size, self.seed = split, size, seed
        self.length = ANOMALY_LENGTHS[split] if length is None else length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(index)
        key = (self.seed, _ANOMALY_STREAM + _STREAMS[self.split], index)
        image, labels = draw_scene(key, self.size, strangers=True)
        return _sample(image, _anomaly_mask(labels == STRANGER), f"scenes_anomaly_{self.split}_{index:05d}")

    def labels(self, index: int) -> Tensor:
        """Mask (h w) uint8 of one sample."""
        return self[index].labels

    def content(self) -> str:
        """What the scenes are drawn from."""
        return f"{self.seed} {self.size} {len(self)}"


def _anomaly_mask(strange: np.ndarray) -> np.ndarray:
    """0 / 1 / IGNORE from where unknown things show (h w); what peeps out with a few pixels only is IGNORE
    too."""
    pieces, count = label(strange)
    tiny = np.flatnonzero(np.bincount(pieces.ravel(), minlength=count + 1) < strange.size / 1000)
    mask = strange.astype(np.uint8)
    mask[binary_dilation(strange) & ~strange] = IGNORE
    mask[strange & np.isin(pieces, tiny)] = IGNORE
    return mask


def _sample(image: np.ndarray, labels: np.ndarray, name: str) -> Sample:
    return Sample(torch.from_numpy(image).permute(2, 0, 1).contiguous(), torch.from_numpy(labels), name)
