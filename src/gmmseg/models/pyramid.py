"""A light decoder over the scales of a backbone: with a frozen one, trained in minutes on a CPU."""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.models.backbones import FreezableBackbone, FrozenBackbone, TimmBackbone
from gmmseg.models.features import (
    Features,
    SplitFeatures,
    averaged,
    conv_bn_relu,
    crop_to_image,
    pad_to_multiple,
    resize,
    separable_conv,
)


class PyramidFeatures(SplitFeatures):
    """All scales of the backbone, joined at stride 8 and mixed.

    Images are padded to multiples of ``multiple``, for backbones whose maps fit together only then.
    """

    stride = 8

    def __init__(
        self, backbone: FrozenBackbone | FreezableBackbone, *, channels: int = 128, multiple: int = 1
    ) -> None:
        super().__init__()
        self.multiple = multiple
        timm = backbone.backbone
        self.mean, self.std = timm.mean, timm.std
        self.reduce = conv_bn_relu(sum(timm.channels), channels, 1)
        self.refine = separable_conv(channels, channels)
        self.backbone = backbone
        self.out_channels = channels

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The backbone's maps; those finer than (ceil(H/8) ceil(W/8)) are averaged to that size."""
        images = pad_to_multiple(images, self.multiple)
        size = self._size(images.shape[-2:])
        return tuple(
            averaged(maps, size) if maps.shape[-2] > size[0] else maps for maps in self.backbone(images)
        )

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        padded = [-(-side // self.multiple) * self.multiple for side in image_size]
        convolution, *rest = self.reduce
        assert isinstance(convolution, nn.Conv2d)
        mixed = _convolved(convolution.weight, maps, self._size(padded))
        for each in (*rest, self.refine):
            mixed = each(mixed)
        return Features(crop_to_image(mixed, image_size, self.stride))

    def _size(self, image_size: Sequence[int]) -> tuple[int, int]:
        height, width = (-(-side // self.stride) for side in image_size)
        return height, width


def _convolved(weight: Tensor, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
    """The 1x1 convolution by ``weight`` (g f 1 1) of all maps, resized to ``size`` and joined: (b g h w).

    Resizing and a 1x1 convolution can change places, so coarse maps are convolved while they are small: a
    third of the time of the joined maps.
    """
    parts = weight.split([each.shape[1] for each in maps], dim=1)
    small = [F.conv2d(each, part) for each, part in zip(maps, parts, strict=True)]
    return reduce(torch.add, [resize(each, size) for each in small])


class FrozenPyramidFeatures(PyramidFeatures):
    """`PyramidFeatures` of which only the decoder is trained."""

    def __init__(self, backbone: TimmBackbone, *, channels: int = 128) -> None:
        super().__init__(FrozenBackbone(backbone), channels=channels)
