"""A frozen self-supervised ViT (DINOv2, DINOv3) under a light decoder."""

import torch
from torch import Tensor, nn

from gmmseg.models.backbones import FrozenBackbone, TimmBackbone
from gmmseg.models.features import (
    Features,
    SplitFeatures,
    conv_bn_relu,
    crop_to_image,
    pad_to_multiple,
    resize,
    separable_conv,
)


class FrozenViTFeatures(SplitFeatures):
    """Patch tokens of several blocks, joined, upsampled by two and mixed; only the decoder is trained.

    The stride is half the patch size.
    """

    def __init__(self, backbone: TimmBackbone, *, channels: int = 256) -> None:
        super().__init__()
        self.mean, self.std = backbone.mean, backbone.std
        self.patch = backbone.reductions[-1]
        self.reduce = conv_bn_relu(sum(backbone.channels), channels, 1)
        self.refine = nn.Sequential(separable_conv(channels, channels), separable_conv(channels, channels))
        self.backbone = FrozenBackbone(backbone)
        self.out_channels, self.stride = channels, self.patch // 2

    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(pad_to_multiple(images, self.patch)))

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        joined = self.reduce(torch.cat(maps, dim=1))
        fine = self.refine(resize(joined, (2 * joined.shape[-2], 2 * joined.shape[-1])))
        return Features(crop_to_image(fine, image_size, self.stride))
