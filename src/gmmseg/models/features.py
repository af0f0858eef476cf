"""The contract between networks and heads: what a feature extractor is, and the blocks they share."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Features(NamedTuple):
    """``main`` (b f h w) for the head; ``auxiliary`` maps, each (b f' h' w'), for the auxiliary heads."""

    main: Tensor
    auxiliary: tuple[Tensor, ...] = ()


class FeatureExtractor(nn.Module):
    """Normalised images (b 3 H W) -> Features with a main map (b out_channels ceil(H/stride) ceil(W/stride)).

    ``backbone`` is the part that comes pretrained; ``auxiliary_channels``: widths of the auxiliary maps;
    ``align_corners``: how the network's scores are resized to the image, as in `resize`.
    """

    out_channels: int
    stride: int
    backbone: nn.Module
    auxiliary_channels: tuple[int, ...] = ()
    align_corners: bool = False
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def forward(self, images: Tensor) -> Features:
        raise NotImplementedError


class SplitFeatures(FeatureExtractor, ABC):
    """A feature extractor in two steps: what its backbone alone decides, and what its decoder makes of it.

    While the backbone is frozen the first step gives the same maps for the same image, so that they can be
    kept and only the second step is trained.
    """

    multiple: int = 1
    """The backbone sees images padded to multiples of this many pixels."""

    @abstractmethod
    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Normalised images (b 3 H W) -> maps, each (b f h w), computed by the backbone and nothing else."""

    @abstractmethod
    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        """What `backbone_maps` gives for images of ``image_size`` (H, W) -> their features."""

    def forward(self, images: Tensor) -> Features:
        height, width = images.shape[-2:]
        return self.decode(self.backbone_maps(images), (height, width))

    def joined_maps(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Tensor:
        """What `backbone_maps` gives as one map (b f ceil(H/stride) ceil(W/stride)), all channels together.

        Coarser maps are interpolated, finer ones averaged.
        """
        padded = [-(-side // self.multiple) * self.multiple for side in image_size]
        height, width = (-(-side // self.stride) for side in padded)
        same = [
            averaged(each, (height, width)) if each.shape[-2] > height else resize(each, (height, width))
            for each in maps
        ]
        return crop_to_image(torch.cat(same, dim=1), image_size, self.stride)


def extracted(extractor: nn.Module, images: Tensor) -> tuple[Features, tuple[Tensor, ...] | None]:
    """The features of normalised images (b 3 H W), and the backbone's maps that they were decoded from.

    None in place of the maps for a network that cannot be split.
    """
    if isinstance(extractor, SplitFeatures):
        height, width = images.shape[-2:]
        maps = extractor.backbone_maps(images)
        return extractor.decode(maps, (height, width)), maps
    features = extractor(images)
    return Features(features) if isinstance(features, Tensor) else features, None


def begin_anew_(extractor: nn.Module) -> None:
    """Give the layers between the backbone of a feature extractor and the head new random weights."""
    backbone = extractor.backbone
    assert isinstance(backbone, nn.Module)
    pretrained = set(backbone.modules())
    for layer in extractor.modules():
        begin = getattr(layer, "reset_parameters", None)
        if layer not in pretrained and callable(begin):
            begin()


class FrozenFeatures(SplitFeatures):
    """A whole feature extractor that is not trained: all of it is backbone, and nothing is left to decode.

    So the features themselves can be kept, and the head alone is trained on them.
    """

    def __init__(self, extractor: FeatureExtractor) -> None:
        super().__init__()
        self.backbone = extractor.requires_grad_(False)
        self.out_channels, self.stride = extractor.out_channels, extractor.stride
        self.align_corners = extractor.align_corners
        self.mean, self.std = extractor.mean, extractor.std
        self.train(False)

    def train(self, mode: bool = True) -> "FrozenFeatures":
        """Its batch norms keep their statistics, whatever the head does."""
        super().train(mode)
        self.backbone.eval()
        return self

    @torch.no_grad()
    def backbone_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.backbone(images)
        return (features if isinstance(features, Tensor) else features.main,)

    def decode(self, maps: tuple[Tensor, ...], image_size: tuple[int, int]) -> Features:
        return Features(maps[0])


def conv_bn_relu(
    in_channels: int, out_channels: int, kernel: int, *, dilation: int = 1, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution that keeps the size (at stride 1), batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def separable_conv(in_channels: int, out_channels: int, *, dilation: int = 1) -> nn.Sequential:
    """3x3 depthwise and 1x1 pointwise convolution, each with batch norm and ReLU."""
    depthwise = conv_bn_relu(in_channels, in_channels, 3, dilation=dilation, groups=in_channels)
    return nn.Sequential(depthwise, conv_bn_relu(in_channels, out_channels, 1))


def resize(maps: Tensor, size: tuple[int, int] | torch.Size, *, align_corners: bool = False) -> Tensor:
    """Bilinear resize of maps (b c h w) to ``size``.

    A cell lies over the middle of its pixels, or, with ``align_corners``, the centres of the first and the
    last cell lie over the centres of the first and the last pixel.
    """
    if maps.shape[-2:] == tuple(size):
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=align_corners)


def averaged(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (b f h w) at a smaller ``size``, each cell the mean of those it covers."""
    factor = int(maps.shape[-2] // size[0])
    if maps.shape[-2:] == (factor * size[0], factor * size[1]):
        return F.avg_pool2d(maps, factor)  # the same, for graphs of images of any size, too
    return F.adaptive_avg_pool2d(maps, size)


def pad_to_multiple(images: Tensor, divisor: int) -> Tensor:
    """Images (b 3 h w) with zeros to the right and below, so that ``divisor`` divides both sides."""
    height, width = images.shape[-2:]
    # As quotients and not as remainders: where sides are symbols, those after it stay simple.
    below, right = (((side - 1) // divisor + 1) * divisor - side for side in (height, width))
    return F.pad(images, (0, right, 0, below))


def crop_to_image(maps: Tensor, image_size: tuple[int, int] | torch.Size, stride: int) -> Tensor:
    """The part of maps (b f h w) of a padded image that lies over the image itself."""
    height, width = (-(-side // stride) for side in image_size)  # rounded up, also where sides are symbols
    return maps[..., :height, :width]
