"""The door to segmentation-models-pytorch: its networks taken apart, and built again from their settings."""

from typing import Any

from torch import Tensor, nn

from gmmseg.models.convert import Dissection, measured_stride
from gmmseg.models.features import FeatureExtractor, Features, crop_to_image, pad_to_multiple


class SMPFeatures(FeatureExtractor):
    """Encoder and decoder of an smp network; images are padded where its encoder asks for even sizes.

    ``before`` is what its segmentation head does before the classifier: nothing, mostly. After it, every
    segmentation head of smp upsamples with aligned corners.
    """

    align_corners = True

    def __init__(self, network: Any, before: nn.Module, out_channels: int) -> None:
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


def dissect_smp(model: Any) -> Dissection:
    """The classifier is the last convolution of the segmentation head; what follows is left out."""
    layers = list(getattr(model.segmentation_head, "head", model.segmentation_head))
    last = max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d))
    classifier = layers[last]
    source = {
        "source": "smp",
        "class": type(model).__name__,
        "config": {**model.config, "encoder_weights": None},
    }
    features = SMPFeatures(model, nn.Sequential(*layers[:last]), classifier.in_channels)
    return Dissection(features, classifier, classifier.out_channels, source)


def rebuild_smp(source: dict[str, Any]) -> nn.Module:
    """The network a recipe describes, with random weights."""
    import segmentation_models_pytorch as smp

    known = {kind.__name__: kind for kind in smp.MODEL_ARCHITECTURES_MAPPING.values()}
    if source["class"] not in known:
        raise ValueError(f"segmentation-models-pytorch has no architecture {source['class']!r}")
    return known[source["class"]](**{**source["config"], "encoder_weights": None})
