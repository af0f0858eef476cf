"""Built-in street scenes: no download, drawn when asked for, the same for the same seed.

Ten classes, each with several looks, under five kinds of light. ``ScenesAnomaly`` shows the same kind of
street with things in it that no scene of ``Scenes`` holds. ``Streets`` and ``StreetsAnomaly`` are the same
streets, larger and in natural light, with more kinds of unknown things.
"""

from typing import ClassVar

import numpy as np
import torch
from scipy.ndimage import binary_dilation, label
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.data.scenes.scenery import PLAIN, STRANGER, SUNLIT, draw_scene
from gmmseg.data.spaces import load_label_space
from gmmseg.labels import IGNORE
from gmmseg.samples import Sample

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
    usual_size = (96, 160)
    lengths: ClassVar = {"train": 600, "val": 100, "test": 200}
    look = PLAIN

    def __init__(
        self, split: str, *, size: tuple[int, int] | None = None, length: int | None = None, seed: int = 0
    ) -> None:
        self.split, self.size, self.seed = split, size or self.usual_size, seed
        _check(split, self.lengths, self.size)
        self.length = self.lengths[split] if length is None else length
        self.label_space = load_label_space("scenes")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(index)
        key = (self.seed, _STREAMS[self.split], index)
        image, labels = draw_scene(key, self.size, strangers=False, look=self.look)
        return _sample(image, labels, f"{self.name}_{self.split}_{index:05d}")

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
    usual_size = (96, 160)
    lengths: ClassVar = {"val": 60, "test": 300}
    look = PLAIN

    def __init__(
        self,
        split: str = "test",
        *,
        size: tuple[int, int] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        self.split, self.size, self.seed = split, size or self.usual_size, seed
        _check(split, self.lengths, self.size)
        self.length = self.lengths[split] if length is None else length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(index)
        key = (self.seed, _ANOMALY_STREAM + _STREAMS[self.split], index)
        image, labels = draw_scene(key, self.size, strangers=True, look=self.look)
        return _sample(image, _anomaly_mask(labels == STRANGER), f"{self.name}_{self.split}_{index:05d}")

    def labels(self, index: int) -> Tensor:
        """Mask (h w) uint8 of one sample."""
        return self[index].labels

    def content(self) -> str:
        """What the scenes are drawn from."""
        return f"{self.seed} {self.size} {len(self)}"


class Streets(Scenes):
    """The streets of `Scenes`, larger and in natural light."""

    name = "streets"
    usual_size = (240, 400)
    lengths: ClassVar = {"train": 300, "val": 60, "test": 100}
    look = SUNLIT


class StreetsAnomaly(ScenesAnomaly):
    """The streets of `ScenesAnomaly`, larger and in natural light, with more kinds of unknown things."""

    name = "streets_anomaly"
    usual_size = (240, 400)
    lengths: ClassVar = {"val": 40, "test": 150}
    look = SUNLIT


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
