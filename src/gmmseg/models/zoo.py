"""Named networks, each as a generative segmenter or as its softmax twin: a table of contents in code."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

from gmmseg.models.backbones import TimmBackbone
from gmmseg.models.deeplab import DeepLabV3PlusFeatures
from gmmseg.models.fcn import FCNFeatures, auxiliary_head
from gmmseg.models.features import FeatureExtractor
from gmmseg.models.heads import HeadSettings, make_head
from gmmseg.models.huggingface import mit_segformer, swin_config, swin_mask2former, swin_upernet
from gmmseg.models.masks import mask_segmenter
from gmmseg.models.names import meant
from gmmseg.models.ocr import OCRFeatures
from gmmseg.models.pyramid import FrozenPyramidFeatures
from gmmseg.models.recipe import Recipe
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.unet import TinyUNetFeatures
from gmmseg.models.vit import FrozenViTFeatures

if TYPE_CHECKING:
    from transformers import Mask2FormerForUniversalSegmentation

Made = TypeVar("Made")


def fcn(backbone: str, num_classes: int, weights: str | None, *, channels: int = 512) -> FeatureExtractor:
    """FCN over a ResNet dilated to stride 8."""
    maps = TimmBackbone(backbone, out_indices=(3, 4), weights=weights, options={"output_stride": 8})
    return FCNFeatures(maps, channels=channels)


def deeplabv3plus(
    backbone: str,
    num_classes: int,
    weights: str | None,
    *,
    output_stride: int = 8,
    channels: int = 512,
    dropout: float = 0.1,
) -> FeatureExtractor:
    """DeepLabV3+ over a dilated backbone; the dilations follow its stride."""
    maps = TimmBackbone(
        backbone, out_indices=(1, 3, 4), weights=weights, options={"output_stride": output_stride}
    )
    dilations = (12, 24, 36) if output_stride == 8 else (6, 12, 18)
    return DeepLabV3PlusFeatures(maps, channels=channels, dilations=dilations, dropout=dropout)


def ocrnet(backbone: str, num_classes: int, weights: str | None, *, channels: int = 512) -> FeatureExtractor:
    """OCRNet over the four resolutions of an HRNet."""
    maps = TimmBackbone(backbone, out_indices=(1, 2, 3, 4), weights=weights, options={"feature_location": ""})
    return OCRFeatures(maps, num_classes, channels=channels, key_channels=channels // 2)


def frozen_vit(
    backbone: str, num_classes: int, weights: str | None, *, blocks: tuple[int, ...]
) -> FeatureExtractor:
    """A light decoder over the named blocks of a frozen ViT."""
    maps = TimmBackbone(backbone, out_indices=blocks, weights=weights, options={"dynamic_img_size": True})
    return FrozenViTFeatures(maps)


def frozen_pyramid(backbone: str, num_classes: int, weights: str | None) -> FeatureExtractor:
    """A light decoder over four scales of a frozen convolutional backbone."""
    return FrozenPyramidFeatures(TimmBackbone(backbone, out_indices=(1, 2, 3, 4), weights=weights))


def segformer(size: str, num_classes: int, weights: str | None) -> FeatureExtractor:
    return mit_segformer(size, weights)


def upernet(num_classes: int, weights: str | None) -> FeatureExtractor:
    """UPerNet over Swin-B."""
    swin = swin_config(128, [2, 2, 18, 2], [4, 8, 16, 32], 7)
    return swin_upernet(swin, weights, published="microsoft/swin-base-patch4-window7-224")


def mask2former(num_classes: int, weights: str | None) -> "Mask2FormerForUniversalSegmentation":
    """Mask2Former over Swin-L."""
    swin = swin_config(192, [2, 2, 18, 2], [6, 12, 24, 48], 12)
    published = "microsoft/swin-large-patch4-window12-384-in22k"
    return swin_mask2former(swin, num_classes, weights, published=published)


def tiny_unet(num_classes: int, weights: str | None) -> FeatureExtractor:
    if weights is not None:
        raise ValueError("tiny_unet is trained from scratch: there are no backbone weights to load")
    return TinyUNetFeatures()


def assemble(
    features: FeatureExtractor, num_classes: int, settings: HeadSettings, recipe: Recipe | None = None
) -> Segmenter:
    """Features, a head as described, and the auxiliary heads the features provide for."""
    return Segmenter(
        features,
        make_head(settings, features.out_channels, num_classes),
        mean=features.mean,
        std=features.std,
        auxiliary_heads=_auxiliary_heads(features, num_classes),
        recipe=recipe,
    )


def _auxiliary_heads(features: FeatureExtractor, num_classes: int) -> tuple[nn.Module, ...]:
    if isinstance(features, OCRFeatures):
        return (nn.Identity(),)  # its auxiliary map is its coarse segmentation, logits already
    return tuple(auxiliary_head(channels, num_classes) for channels in features.auxiliary_channels)


@dataclass(frozen=True)
class Entry(Generic[Made]):
    """A named network: what it is, in a line; its features, given the number of classes and the weights of
    its backbone; and how features, number of classes, head and recipe become a segmenter."""

    summary: str
    network: Callable[[int, str | None], Made]
    assemble: Callable[[Made, int, HeadSettings, Recipe], Segmenter] = assemble  # type: ignore[assignment]

    def build(
        self, num_classes: int, settings: HeadSettings, weights: str | None, recipe: Recipe
    ) -> Segmenter:
        """The segmenter, its backbone with ``weights`` as in `gmmseg.build`."""
        return self.assemble(self.network(num_classes, weights), num_classes, settings, recipe)


_LITE0 = partial(deeplabv3plus, "tf_efficientnet_lite0", output_stride=16, channels=128, dropout=0.0)

_TWELVE = (2, 5, 8, 11)  # every third of twelve blocks

ZOO: "dict[str, Entry[FeatureExtractor] | Entry[Mask2FormerForUniversalSegmentation]]" = {
    "tiny_unet": Entry("a small U-Net from scratch, for demonstrations on a CPU", tiny_unet),
    "deeplabv3plus_efficientnet_lite0": Entry(
        "DeepLabV3+ over EfficientNet-Lite0, trainable on a CPU", _LITE0
    ),
    "light_efficientnet_lite0": Entry(
        "a light decoder over a frozen EfficientNet-Lite0, trained in minutes on a CPU",
        partial(frozen_pyramid, "tf_efficientnet_lite0"),
    ),
    "fcn_resnet101": Entry("FCN over ResNet-101, as in the paper", partial(fcn, "resnet101c")),
    "deeplabv3plus_resnet101": Entry(
        "DeepLabV3+ over ResNet-101, as in the paper", partial(deeplabv3plus, "resnet101c")
    ),
    "ocrnet_hrnet_w48": Entry("OCRNet over HRNetV2-W48, as in the paper", partial(ocrnet, "hrnet_w48")),
    "upernet_swin_base": Entry("UPerNet over Swin-B, as in the paper", upernet),
    "segformer_mit_b0": Entry("SegFormer over MiT-B0, the smallest", partial(segformer, "b0")),
    "segformer_mit_b1": Entry("SegFormer over MiT-B1", partial(segformer, "b1")),
    "segformer_mit_b2": Entry("SegFormer over MiT-B2", partial(segformer, "b2")),
    "segformer_mit_b3": Entry("SegFormer over MiT-B3", partial(segformer, "b3")),
    "segformer_mit_b4": Entry("SegFormer over MiT-B4", partial(segformer, "b4")),
    "segformer_mit_b5": Entry("SegFormer over MiT-B5, as in the paper", partial(segformer, "b5")),
    "mask2former_swin_large": Entry("Mask2Former over Swin-L, as in the paper", mask2former, mask_segmenter),
    "dinov2_vit_small": Entry(
        "a light decoder over a frozen DINOv2 ViT-S/14",
        partial(frozen_vit, "vit_small_patch14_dinov2", blocks=_TWELVE),
    ),
    "dinov2_vit_base": Entry(
        "a light decoder over a frozen DINOv2 ViT-B/14",
        partial(frozen_vit, "vit_base_patch14_dinov2", blocks=_TWELVE),
    ),
    "dinov3_vit_small": Entry(
        "a light decoder over a frozen DINOv3 ViT-S/16",
        partial(frozen_vit, "vit_small_patch16_dinov3", blocks=_TWELVE),
    ),
    "dinov3_vit_base": Entry(
        "a light decoder over a frozen DINOv3 ViT-B/16",
        partial(frozen_vit, "vit_base_patch16_dinov3", blocks=_TWELVE),
    ),
}


def build_named(name: str, num_classes: int, settings: HeadSettings, weights: str | None = None) -> Segmenter:
    """The network of the zoo called ``name``; ``weights`` of its backbone as in `gmmseg.build`."""
    if name not in ZOO:
        raise ValueError(f"unknown network {name!r}: choose one of {', '.join(ZOO)}{meant(name, ZOO)}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    recipe: Recipe = {"source": "zoo", "name": name, "num_classes": num_classes, "head": asdict(settings)}
    return ZOO[name].build(num_classes, settings, weights, recipe)
