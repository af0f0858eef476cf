"""DeepLabV3+: context at several dilations, and edges from an early stage."""

import torch
from torch import Tensor, nn

from gmmseg.models.backbones import TimmBackbone
from gmmseg.models.features import Features, SplitFeatures, conv_bn_relu, resize, separable_conv


class SeparableASPP(nn.Module):
    """Atrous spatial pyramid pooling with separable convolutions: maps (b f h w) -> (b channels h w)."""

    def __init__(self, in_channels: int, channels: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.pooled = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(in_channels, channels, 1), nn.ReLU(inplace=True)
        )
        branches = [conv_bn_relu(in_channels, channels, 1)]
        branches += [separable_conv(in_channels, channels, dilation=dilation) for dilation in dilations]
        self.branches = nn.ModuleList(branches)
        self.fuse = conv_bn_relu((len(branches) + 1) * channels, channels, 3)

    def forward(self, maps: Tensor) -> Tensor:
        # The pooled branch has one value per image, too few for batch statistics at batch size 1.
        pooled = self.pooled(maps).expand(-1, -1, *maps.shape[-2:])
        return self.fuse(torch.cat([pooled, *(branch(maps) for branch in self.branches)], dim=1))


class DeepLabV3PlusFeatures(SplitFeatures):
    """ASPP on the deepest map, joined at stride 4 with a thin slice of the first stage."""

    def __init__(
        self,
        backbone: TimmBackbone,
        *,
        channels: int = 512,
        edge_channels: int = 48,
        dilations: tuple[int, ...] = (12, 24, 36),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean, self.std = backbone.mean, backbone.std
        early, middle, deep = backbone.channels[0], backbone.channels[-2], backbone.channels[-1]
        self.aspp = SeparableASPP(deep, channels, dilations)
        self.edges = conv_bn_relu(early, edge_channels, 1)
        self.refine = nn.Sequential(
            separable_conv(channels + edge_channels, channels), separable_conv(channels, channels)
        )
        self.dropout = nn.Dropout2d(dropout)
        self.out_channels, self.stride = channels, backbone.reductions[0]
        self.auxiliary_channels = (middle,)

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(images))

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        early, *_, middle, deep = maps
        edges = self.edges(early)
        context = resize(self.aspp(deep), edges.shape[-2:])
        main = self.refine(torch.cat([context, edges], dim=1))
        return Features(self.dropout(main), (middle,))
