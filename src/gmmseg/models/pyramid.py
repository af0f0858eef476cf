"""A light decoder over a frozen convolutional backbone: trained in minutes on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.models.backbones import FrozenBackbone, TimmBackbone
from gmmseg.models.features import Features, SplitFeatures, conv_bn_relu, resize, separable_conv


class FrozenPyramidFeatures(SplitFeatures):
    """All scales of the backbone, joined at stride 8 and mixed; only the decoder is trained."""

    stride = 8

    def __init__(self, backbone: TimmBackbone, *, channels: int = 128) -> None:
        super().__init__()
        self.mean, self.std = backbone.mean, backbone.std
        self.reduce = conv_bn_relu(sum(backbone.channels), channels, 1)
        self.refine = separable_conv(channels, channels)
        self.backbone = FrozenBackbone(backbone)
        self.out_channels = channels

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """The backbone's maps; those finer than (ceil(H/8) ceil(W/8)) are averaged to that size."""
        size = self._size(images.shape[-2:])
        return tuple(
            F.adaptive_avg_pool2d(maps, size) if maps.shape[-2] > size[0] else maps
            for maps in self.backbone(images)
        )

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        joined = torch.cat([resize(each, self._size(image_size)) for each in maps], dim=1)
        return Features(self.refine(self.reduce(joined)))

    def _size(self, image_size: tuple[int, int] | torch.Size) -> tuple[int, int]:
        height, width = (-(-side // self.stride) for side in image_size)
        return height, width
