"""FCN: a dilated backbone and plain convolutions; and the auxiliary head other recipes borrow from it."""

import torch
from torch import Tensor, nn

from gmmseg.models.backbones import TimmBackbone
from gmmseg.models.features import Features, SplitFeatures, conv_bn_relu


class FCNFeatures(SplitFeatures):
    """Two 3x3 convolutions on the deepest map, and a third over their result beside that map (stride 8)."""

    def __init__(self, backbone: TimmBackbone, *, channels: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean, self.std = backbone.mean, backbone.std
        middle, deep = backbone.channels[-2:]
        self.convs = nn.Sequential(conv_bn_relu(deep, channels, 3), conv_bn_relu(channels, channels, 3))
        self.fuse = conv_bn_relu(deep + channels, channels, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.out_channels, self.stride = channels, backbone.reductions[-1]
        self.auxiliary_channels = (middle,)

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(images))

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        *_, middle, deep = maps
        main = self.fuse(torch.cat([deep, self.convs(deep)], dim=1))
        return Features(self.dropout(main), (middle,))


def auxiliary_head(in_channels: int, num_classes: int, *, channels: int = 256) -> nn.Sequential:
    """Maps (b f h w) of a middle stage -> logits (b c h w), for training only."""
    return nn.Sequential(
        conv_bn_relu(in_channels, channels, 3), nn.Dropout2d(0.1), nn.Conv2d(channels, num_classes, 1)
    )
