"""OCRNet: each pixel is described by the classes' regions it resembles (Yuan, Chen, Wang, ECCV 2020)."""

import torch
from torch import Tensor, nn

from gmmseg.models.backbones import TimmBackbone
from gmmseg.models.features import (
    Features,
    SplitFeatures,
    conv_bn_relu,
    crop_to_image,
    pad_to_multiple,
    resize,
)


class ObjectAttention(nn.Module):
    """Pixels (b f h w) attend to region descriptions (b f c 1) and come back enriched, (b f h w)."""

    def __init__(self, channels: int, key_channels: int) -> None:
        super().__init__()
        self.scale = key_channels**-0.5
        self.query = nn.Sequential(
            conv_bn_relu(channels, key_channels, 1), conv_bn_relu(key_channels, key_channels, 1)
        )
        self.key = nn.Sequential(
            conv_bn_relu(channels, key_channels, 1), conv_bn_relu(key_channels, key_channels, 1)
        )
        self.value = conv_bn_relu(channels, key_channels, 1)
        self.restore = conv_bn_relu(key_channels, channels, 1)
        self.fuse = conv_bn_relu(2 * channels, channels, 1)

    def forward(self, pixels: Tensor, regions: Tensor) -> Tensor:
        queries = self.query(pixels).flatten(2)
        keys, values = self.key(regions).flatten(2), self.value(regions).flatten(2)
        attention = torch.softmax(self.scale * torch.einsum("bdn,bdc->bnc", queries, keys), dim=-1)
        context = torch.einsum("bnc,bdc->bdn", attention, values).unflatten(2, pixels.shape[-2:])
        return self.fuse(torch.cat([self.restore(context), pixels], dim=1))


def region_descriptions(pixels: Tensor, coarse_logits: Tensor) -> Tensor:
    """Mean pixel (b f h w) of each class's soft region, the regions from logits (b c h w) -> (b f c 1)."""
    shares = torch.softmax(coarse_logits.flatten(2), dim=-1)
    return torch.einsum("bcn,bfn->bfc", shares, pixels.flatten(2)).unsqueeze(-1)


class OCRFeatures(SplitFeatures):
    """Object-contextual representations over all scales of a high-resolution network (stride 4).

    The coarse segmentation that defines the regions is also the auxiliary output: it is logits already.
    """

    def __init__(
        self,
        backbone: TimmBackbone,
        num_classes: int,
        *,
        channels: int = 512,
        key_channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean, self.std = backbone.mean, backbone.std
        joined = sum(backbone.channels)
        self.coarse = nn.Sequential(conv_bn_relu(joined, joined, 1), nn.Conv2d(joined, num_classes, 1))
        self.pixels = conv_bn_relu(joined, channels, 3)
        self.attention = ObjectAttention(channels, key_channels)
        self.dropout = nn.Dropout2d(dropout)
        self.out_channels, self.stride = channels, backbone.reductions[0]
        self.multiple = backbone.reductions[-1]
        self.auxiliary_channels = (num_classes,)

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(pad_to_multiple(images, self.multiple)))

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        joined = torch.cat([resize(each, maps[0].shape[-2:]) for each in maps], dim=1)
        joined = crop_to_image(joined, image_size, self.stride)
        coarse = self.coarse(joined)
        pixels = self.pixels(joined)
        main = self.attention(pixels, region_descriptions(pixels, coarse))
        return Features(self.dropout(main), (coarse,))
