"""The door to segmentation-models-pytorch: its networks taken apart, and built again from their settings."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gmmseg.models.backbones import refuse_unknown
from gmmseg.models.conversion import Dissection, Triple, measured_stride
from gmmseg.models.features import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    FeatureExtractor,
    Features,
    crop_to_image,
    pad_to_multiple,
)
from gmmseg.models.hub import WEIGHTS_INSTEAD, fetching
from gmmseg.models.names import meant
from gmmseg.models.recipe import Recipe
from gmmseg.models.weights import load_backbone

if TYPE_CHECKING:
    from segmentation_models_pytorch.base import SegmentationModel


class SMPFeatures(FeatureExtractor):
    """Encoder and decoder of an smp network; images are padded where its encoder asks for even sizes.

    ``before`` is what its segmentation head does before the classifier: nothing, mostly. After it, every
    segmentation head of smp upsamples with aligned corners.
    """

    align_corners = True

    def __init__(self, network: "SegmentationModel", before: nn.Module, out_channels: int) -> None:
        super().__init__()
        network.segmentation_head = before
        network.classification_head = None
        self.network = network
        self.divisor = network.encoder.output_stride if network.requires_divisible_input_shape else 1
        self.out_channels, self.stride = out_channels, 1
        self.stride = measured_stride(self, "segmentation_head")

    @property
    def backbone(self) -> nn.Module:  # type: ignore[override]
        return self.network.encoder

    def forward(self, images: Tensor) -> Features:
        maps = self.network(pad_to_multiple(images, self.divisor))
        return Features(crop_to_image(maps, images.shape[-2:], self.stride))


def dissect_smp(model: "SegmentationModel") -> Dissection:
    """The classifier is the last convolution of the segmentation head; what follows is left out."""
    layers = list(getattr(model.segmentation_head, "head", model.segmentation_head))
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d))
    classifier = layers[last]
    source: Recipe = {
        "source": "smp",
        "class": type(model).__name__,
        "config": {**model.config, "encoder_weights": None},
    }
    features = SMPFeatures(model, nn.Sequential(*layers[:last]), classifier.in_channels)
    return Dissection(features, classifier, classifier.out_channels, source)


def rebuild_smp(source: Recipe) -> nn.Module:
    """The network a recipe describes, with random weights."""
    return _architecture(source["class"])(**{**source["config"], "encoder_weights": None})


def _architecture(name: str) -> "type[SegmentationModel]":
    """smp's class of that name, written in whatever case."""
    import segmentation_models_pytorch as smp

    known = {kind.__name__: kind for kind in smp.MODEL_ARCHITECTURES_MAPPING.values()}
    spelling = {each.casefold(): each for each in known}
    if name.casefold() not in spelling:
        raise ValueError(
            f"segmentation-models-pytorch has no architecture {name!r}: choose {', '.join(known)}"
            f"{meant(name, known)}"
        )
    return known[spelling[name.casefold()]]


def open_smp(name: str, num_classes: int, weights: str | None) -> "tuple[SegmentationModel, Triple, Triple]":
    """The network called ARCHITECTURE/ENCODER, and the mean and std its encoder's weights expect.

    ``weights`` of the encoder: None (random), "pretrained" (ImageNet, from the hub) or a file.
    """
    architecture, slash, encoder = name.partition("/")
    if not slash or not encoder:
        raise ValueError(f"smp:{name}: write smp:ARCHITECTURE/ENCODER, such as smp:Unet/resnet34")
    kind = _architecture(architecture)
    _refuse_unknown_encoder(encoder)
    pretrained = weights == "pretrained"
    access = fetching(f"smp:{name} (weights=pretrained)", WEIGHTS_INSTEAD) if pretrained else nullcontext()
    with access:
        model = kind(encoder, encoder_weights="imagenet" if pretrained else None, classes=num_classes)
    if weights is not None and not pretrained:
        load_backbone(model.encoder, weights)
    return model, *(_normalisation(encoder) if pretrained else (IMAGENET_MEAN, IMAGENET_STD))


def _refuse_unknown_encoder(name: str) -> None:
    import segmentation_models_pytorch as smp

    known = smp.encoders.get_encoder_names()
    if name.startswith("tu-"):  # any backbone of timm
        refuse_unknown(name.removeprefix("tu-"))
    elif name not in known:
        raise ValueError(
            f"segmentation-models-pytorch has no encoder {name!r}: smp.encoders.get_encoder_names() lists "
            f"those it has, and tu-NAME takes one of timm{meant(name, known)}"
        )


def _normalisation(encoder: str) -> tuple[Triple, Triple]:
    """Mean and std of the images that the encoder's ImageNet weights were trained on."""
    import segmentation_models_pytorch as smp

    found = smp.encoders.get_preprocessing_params(encoder, pretrained="imagenet")
    return tuple(found["mean"]), tuple(found["std"])
