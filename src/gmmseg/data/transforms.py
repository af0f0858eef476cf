"""Random changes that move an image and its labels together: scale, crop, flip; and colour, for the image
alone.

A transform takes a Sample and the generator it draws from, and returns a Sample; uint8 in, uint8 out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as v2

from gmmseg.data.augmented import Transform
from gmmseg.labels import IGNORE
from gmmseg.samples import Sample


@dataclass(frozen=True)
class Compose:
    """Transforms one after the other."""

    steps: tuple[Transform, ...]

    def __call__(self, sample: Sample, generator: Generator | None = None) -> Sample:
        for step in self.steps:
            sample = step(sample, generator)
        return sample


@dataclass(frozen=True)
class Window:
    """A part of an image in its own pixels, and the size (height, width) it is resized to."""

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]


@dataclass(frozen=True)
class RandomScaleCrop:
    """Scale by a random factor, then crop ``size`` (height, width); what the image does not fill is IGNORE,
    black.

    A crop with more than ``max_share`` of its labelled pixels in one class is drawn again, ten times at most.
    With ``short_side`` the factor is relative to the image resized to that shorter side.
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.5, 2.0)
    max_share: float = 0.75
    short_side: int | None = None

    def __post_init__(self) -> None:
        if min(self.size) < 1 or not 0 < self.scale[0] <= self.scale[1] or not 0 < self.max_share <= 1:
            raise ValueError(
                f"crop size {self.size}, scale {self.scale} and max_share {self.max_share} must be positive, "
                "the scale ascending and the share at most 1"
            )

    def __call__(self, sample: Sample, generator: Generator | None = None) -> Sample:
        factor = _uniform(*self.scale, generator)
        if self.short_side is not None:
            factor *= self.short_side / min(sample.labels.shape)
        for _ in range(10):
            window = self._draw(sample.labels.shape, factor, generator)
            if self.max_share >= 1 or _largest_share(sample.labels, window) <= self.max_share:
                break
        return _pad(_cut(sample, window), self.size)

    def _draw(self, shape: torch.Size, factor: float, generator: Generator | None) -> Window:
        """A random window whose resized size is the crop, or less where the scaled image is smaller."""
        spans = [min(full, max(1, round(crop / factor))) for full, crop in zip(shape, self.size)]
        top, left = (_integer(full - span, generator) for full, span in zip(shape, spans))
        sizes = [min(crop, max(1, round(span * factor))) for span, crop in zip(spans, self.size)]
        return Window(top, left, spans[0], spans[1], (sizes[0], sizes[1]))


@dataclass(frozen=True)
class RandomFlip:
    """Left and right swapped, half of the time."""

    def __call__(self, sample: Sample, generator: Generator | None = None) -> Sample:
        if _uniform(0, 1, generator) < 0.5:
            return sample
        image, labels = tv_tensors.Image(sample.image), tv_tensors.Mask(sample.labels)
        return _sample(v2.horizontal_flip(image), v2.horizontal_flip(labels), sample.name)


@dataclass(frozen=True)
class PhotometricJitter:
    """Brightness, contrast, saturation and hue, each changed half of the time; labels stay as they are."""

    brightness: float = 0.25
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.05

    def __call__(self, sample: Sample, generator: Generator | None = None) -> Sample:
        image = sample.image
        for strength, adjust in (
            (self.brightness, v2.adjust_brightness),
            (self.contrast, v2.adjust_contrast),
            (self.saturation, v2.adjust_saturation),
        ):
            chosen, factor = _uniform(0, 1, generator) < 0.5, _uniform(1 - strength, 1 + strength, generator)
            if chosen:
                image = adjust(image, factor)
        chosen, turn = _uniform(0, 1, generator) < 0.5, _uniform(-self.hue, self.hue, generator)
        if chosen:
            image = turn_hue(image, turn)
        return Sample(image, sample.labels, sample.name)


def training_transform(
    size: tuple[int, int], *, scale: tuple[float, float] = (0.5, 2.0), short_side: int | None = None
) -> Compose:
    """What the paper trains with: scale and crop, flip, photometric jitter."""
    return Compose((RandomScaleCrop(size, scale, short_side=short_side), RandomFlip(), PhotometricJitter()))


def turn_hue(image: Tensor, turn: float) -> Tensor:
    """Colours (3 h w) uint8 turned about the grey axis by ``turn`` of a full circle.

    A 3x3 matrix, ten times as fast as going through hue, saturation and value and back.
    """
    angle = 2 * math.pi * turn
    own, shift = math.cos(angle), math.sin(angle) / math.sqrt(3)
    rest = (1 - own) / 3
    matrix = torch.tensor(
        [[own + rest, rest - shift, rest + shift],
         [rest + shift, own + rest, rest - shift],
         [rest - shift, rest + shift, own + rest]]
    )  # fmt: skip
    turned = matrix @ image.reshape(3, -1).float()
    return turned.round_().clamp_(0, 255).to(torch.uint8).reshape(image.shape)


def _cut(sample: Sample, window: Window) -> Sample:
    """The window resized: the image smoothly, the labels to the nearest."""
    image, labels = tv_tensors.Image(sample.image), tv_tensors.Mask(sample.labels)
    box = (window.top, window.left, window.height, window.width)
    if window.size == (window.height, window.width):
        return _sample(v2.crop(image, *box), v2.crop(labels, *box), sample.name)
    size = list(window.size)
    # torchvision resizes a Mask by "nearest", which takes the corner of each pixel and so shifts labels
    # against the image by half a pixel; a plain tensor can be resized by "nearest exact", the middle.
    plain = v2.crop(labels, *box).as_subclass(Tensor)[None]
    nearest = v2.resize(plain, size, interpolation=v2.InterpolationMode.NEAREST_EXACT)[0]
    # torch's kernel for bytes fails where a single pixel is left; that for floats does not.
    source = image.float() if size == [1, 1] else image
    smooth = v2.resized_crop(source, *box, size=size, antialias=True)
    return _sample(smooth.round().to(torch.uint8), nearest, sample.name)


def _pad(sample: Sample, size: tuple[int, int]) -> Sample:
    height, width = sample.labels.shape
    below, right = size[0] - height, size[1] - width
    if not below and not right:
        return sample
    image, labels = tv_tensors.Image(sample.image), tv_tensors.Mask(sample.labels)
    border = [0, 0, right, below]
    return _sample(v2.pad(image, border, fill=0), v2.pad(labels, border, fill=IGNORE), sample.name)


def _largest_share(labels: Tensor, window: Window) -> float:
    """Share of the commonest class among the window's labelled pixels; 1 where nothing is labelled."""
    rows = slice(window.top, window.top + window.height)
    columns = slice(window.left, window.left + window.width)
    counts = torch.bincount(labels[rows, columns].reshape(-1), minlength=IGNORE + 1)[:IGNORE]
    return float(counts.max() / counts.sum()) if counts.any() else 1.0


def _sample(image: Tensor, labels: Tensor, name: str) -> Sample:
    return Sample(image.as_subclass(Tensor).contiguous(), labels.as_subclass(Tensor).contiguous(), name)


def _uniform(low: float, high: float, generator: Generator | None) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()


def _integer(highest: int, generator: Generator | None) -> int:
    """A whole number from 0 to ``highest``, both included."""
    return int(torch.randint(highest + 1, (), generator=generator).item())
