"""A light decoder over a frozen convolutional backbone: trained in minutes on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.models.backbones import FrozenBackbone, TimmBackbone
from gmmseg.models.features import FeatureExtractor, Features, conv_bn_relu, resize, separable_conv


class FrozenPyramidFeatures(FeatureExtractor):
    """All scales of the backbone, joined at stride 8 and mixed; only the decoder is trained.

    The two halves are visible, because what `joined` gives never changes in training and can be kept.
    """

    stride = 8

    def __init__(self, backbone: TimmBackbone, *, channels: int = 128) -> None:
        super().__init__()
        self.mean, self.std = backbone.mean, backbone.std
        self.reduce = conv_bn_relu(sum(backbone.channels), channels, 1)
        self.refine = separable_conv(channels, channels)
        self.backbone = FrozenBackbone(backbone)
        self.out_channels = channels

    def forward(self, images: Tensor) -> Features:
        return Features(self.decode(self.joined(images)))

    def joined(self, images: Tensor) -> Tensor:
        """Images (b 3 H W) -> the backbone's maps, side by side, (b f ceil(H/8) ceil(W/8))."""
        height, width = ((side + self.stride - 1) // self.stride for side in images.shape[-2:])
        return torch.cat([_at_size(maps, (height, width)) for maps in self.backbone(images)], dim=1)

    def decode(self, joined: Tensor) -> Tensor:
        """What `joined` gives -> features (b out_channels h w)."""
        return self.refine(self.reduce(joined))


def _at_size(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Finer maps are averaged, coarser ones interpolated."""
    if maps.shape[-2] > size[0]:
        return F.adaptive_avg_pool2d(maps, size)
    return resize(maps, size)
