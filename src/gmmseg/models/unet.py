"""A very small U-Net, trained from scratch in minutes on a CPU: for demonstrations and tests."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from gmmseg.models.features import Features, SplitFeatures, conv_bn_relu, resize


class TinyUNetFeatures(SplitFeatures):
    """Four scales down, two up again: features at stride 4."""

    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    stride = 4

    def __init__(self, widths: tuple[int, int, int, int] = (16, 32, 64, 96), out_channels: int = 64) -> None:
        super().__init__()
        stages = [conv_bn_relu(3, widths[0], 3, stride=2)]
        for narrow, wide in pairwise(widths):
            stages.append(nn.Sequential(conv_bn_relu(narrow, wide, 3, stride=2), conv_bn_relu(wide, wide, 3)))
        self.backbone: nn.Sequential = nn.Sequential(*stages)
        self.up_to_8 = conv_bn_relu(widths[3] + widths[2], widths[2], 3)
        self.up_to_4 = conv_bn_relu(widths[2] + widths[1], out_channels, 3)
        self.out_channels = out_channels

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        maps = [images]
        for stage in self.backbone:
            maps.append(stage(maps[-1]))
        return tuple(maps[1:])

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        _, at_4, at_8, at_16 = maps
        merged = self.up_to_8(torch.cat([resize(at_16, at_8.shape[-2:]), at_8], dim=1))
        return Features(self.up_to_4(torch.cat([resize(merged, at_4.shape[-2:]), at_4], dim=1)))
