"""The door to torchvision's segmentation networks: FCN, DeepLabV3 and LR-ASPP taken apart."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import torch
from torch import Tensor, nn

from gmmseg.models.conversion import ConversionError, Dissection, measured_stride
from gmmseg.models.features import FeatureExtractor, Features, resize
from gmmseg.models.hub import PATIENCE, WEIGHTS_INSTEAD, HubError
from gmmseg.models.names import meant
from gmmseg.models.recipe import Recipe
from gmmseg.models.weights import load_backbone

if TYPE_CHECKING:
    from torchvision.models.segmentation import FCN, LRASPP, DeepLabV3

BUILDERS = (
    "fcn_resnet50",
    "fcn_resnet101",
    "deeplabv3_resnet50",
    "deeplabv3_resnet101",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
)


class TorchvisionFeatures(FeatureExtractor):
    """Backbone and all but the last layer of the classifier of an FCN or a DeepLabV3."""

    def __init__(self, model: "FCN | DeepLabV3") -> None:
        super().__init__()
        self.backbone = model.backbone
        self.decoder = nn.Sequential(*list(model.classifier)[:-1])
        self.out_channels = model.classifier[-1].in_channels
        if model.aux_classifier is not None:
            self.auxiliary_channels = (model.aux_classifier[0].in_channels,)
        self.stride = measured_stride(self, "classifier")

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images)
        return Features(self.decoder(maps["out"]), (maps["aux"],) if self.auxiliary_channels else ())


class LRASPPFeatures(FeatureExtractor):
    """LR-ASPP adds the scores of two maps; here one map holds both, the low one's channels first."""

    def __init__(self, model: "LRASPP") -> None:
        super().__init__()
        self.backbone = model.backbone
        self.cbr, self.scale = model.classifier.cbr, model.classifier.scale
        low, high = model.classifier.low_classifier, model.classifier.high_classifier
        self.out_channels = low.in_channels + high.in_channels
        self.stride = measured_stride(self, "classifier")

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images)
        high = resize(self.cbr(maps["high"]) * self.scale(maps["high"]), maps["low"].shape[-2:])
        return Features(torch.cat([maps["low"], high], dim=1))


class SummedClassifiers(nn.Module):
    """Two convolutions over the two parts of a map (b f h w), their scores (b c h w) added."""

    def __init__(self, low: nn.Conv2d, high: nn.Conv2d) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, maps: Tensor) -> Tensor:
        low, high = maps.split([self.low.in_channels, self.high.in_channels], dim=1)
        return self.low(low) + self.high(high)


def dissect_torchvision(model: "FCN | DeepLabV3 | LRASPP") -> Dissection:
    """The classifier is the last convolution; the upsampling after it is left out."""
    kind = type(model).__name__
    if kind not in ("FCN", "DeepLabV3", "LRASPP"):
        raise ConversionError(
            f"torchvision's {kind} is not FCN, DeepLabV3 or LRASPP: name the layer that "
            'makes its class scores, convert(model, classifier="...")'
        )
    source = _source(model)
    if kind == "LRASPP":
        low, high = model.classifier.low_classifier, model.classifier.high_classifier
        return Dissection(LRASPPFeatures(model), SummedClassifiers(low, high), low.out_channels, source)
    auxiliary = () if model.aux_classifier is None else (model.aux_classifier,)
    classifier = model.classifier[-1]
    return Dissection(TorchvisionFeatures(model), classifier, classifier.out_channels, source, auxiliary)


def _source(model: "FCN | DeepLabV3 | LRASPP") -> Recipe:
    """Which of torchvision's builders made the model; it does not say, but its parameters do."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    last = model.classifier.low_classifier if type(model).__name__ == "LRASPP" else model.classifier[-1]
    for name in BUILDERS:
        if not name.startswith(type(model).__name__.lower()):
            continue
        source: Recipe = {
            "source": "torchvision",
            "name": name,
            "classes": last.out_channels,
            "auxiliary": getattr(model, "aux_classifier", None) is not None,
        }
        with torch.device("meta"):
            candidate = rebuild_torchvision(source)
        if {key: tuple(value.shape) for key, value in candidate.state_dict().items()} == shapes:
            return source
    # Not one of the standard ones: it works all the same, and loading it again needs the model at hand.
    return {"source": "module", "classifier": None}


def rebuild_torchvision(source: Recipe) -> nn.Module:
    """The network a recipe describes, with random weights."""
    from torchvision.models import segmentation

    _refuse_unknown(source["name"])
    builder = getattr(segmentation, source["name"])
    if source["name"].startswith("lraspp"):
        return builder(weights=None, weights_backbone=None, num_classes=source["classes"])
    return builder(
        weights=None, weights_backbone=None, num_classes=source["classes"], aux_loss=source["auxiliary"]
    )


def _refuse_unknown(name: str) -> None:
    if name not in BUILDERS:
        raise ValueError(
            f"torchvision has no segmentation network {name!r}: choose {', '.join(BUILDERS)}"
            f"{meant(name, BUILDERS)}"
        )


def open_torchvision(name: str, num_classes: int, weights: str | None) -> nn.Module:
    """The network called ``name`` for ``num_classes`` classes, its backbone's weights None or a file."""
    model = rebuild_torchvision(
        {"name": name, "classes": num_classes, "auxiliary": not name.startswith("lraspp")}
    )
    if weights is not None:
        load_backbone(model.get_submodule("backbone"), weights)
    return model


def published_torchvision(name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """The network as torchvision publishes it, trained on the classes of Pascal VOC, and their names."""
    from torchvision.models import get_model_weights, segmentation

    _refuse_unknown(name)
    weights = get_model_weights(name).DEFAULT
    _refuse_unreachable(name, weights.url)
    return getattr(segmentation, name)(weights=weights), tuple(weights.meta["categories"])


def _refuse_unreachable(name: str, address: str) -> None:
    """Raise HubError where the file is neither kept from an earlier download nor answered for."""
    if (Path(torch.hub.get_dir()) / "checkpoints" / Path(address).name).is_file():
        return
    try:
        urlopen(address, timeout=PATIENCE).close()
    except OSError as error:
        raise HubError(
            f"torchvision:{name} (weights=pretrained): its file cannot be fetched ({error}); "
            f"{WEIGHTS_INSTEAD}"
        ) from error
