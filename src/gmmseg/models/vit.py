"""A light decoder over the blocks of a ViT, such as a frozen self-supervised one (DINOv2, DINOv3)."""

import torch
from torch import Tensor, nn

from gmmseg.models.backbones import FreezableBackbone, FrozenBackbone, TimmBackbone
from gmmseg.models.features import (
    Features,
    SplitFeatures,
    conv_bn_relu,
    crop_to_image,
    pad_to_multiple,
    resize,
    separable_conv,
)


class ViTFeatures(SplitFeatures):
    """Patch tokens of several blocks, joined, upsampled by two and mixed.

    The stride is half the patch size.
    """

    def __init__(self, backbone: FrozenBackbone | FreezableBackbone, *, channels: int = 256) -> None:
        super().__init__()
        timm = backbone.backbone
        self.mean, self.std = timm.mean, timm.std
        self.patch = self.multiple = timm.reductions[-1]
        self.reduce = conv_bn_relu(sum(timm.channels), channels, 1)
        self.refine = nn.Sequential(separable_conv(channels, channels), separable_conv(channels, channels))
        self.backbone = backbone
        self.out_channels, self.stride = channels, self.patch // 2

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(pad_to_multiple(images, self.patch)))

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        joined = self.reduce(torch.cat(maps, dim=1))
        fine = self.refine(resize(joined, (2 * joined.shape[-2], 2 * joined.shape[-1])))
        return Features(crop_to_image(fine, image_size, self.stride))


class FrozenViTFeatures(ViTFeatures):
    """`ViTFeatures` of which only the decoder is trained."""

    def __init__(self, backbone: TimmBackbone, *, channels: int = 256) -> None:
        super().__init__(FrozenBackbone(backbone), channels=channels)
