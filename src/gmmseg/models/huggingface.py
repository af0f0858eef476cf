"""The door to transformers: SegFormer, UPerNet and others of their kind as feature extractors."""

import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from torch import Tensor, nn

from gmmseg.json_tree import JSON, Value
from gmmseg.models.conversion import ConversionError, Dissection, Triple, dissect_at
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, FeatureExtractor, Features
from gmmseg.models.hub import WEIGHTS_INSTEAD, fetching
from gmmseg.models.recipe import Recipe
from gmmseg.models.weights import WeightsError, listed, naming_broken, read_weights

if TYPE_CHECKING:
    from transformers import (
        Mask2FormerForUniversalSegmentation,
        PreTrainedModel,
        SegformerForSemanticSegmentation,
        SegformerModel,
        SwinConfig,
        UperNetForSemanticSegmentation,
    )

LoadingReport = Mapping[str, Collection[object]]
"""What transformers has found to be missing, of another shape or left over: names of tensors."""
Network = TypeVar("Network", bound="PreTrainedModel")

# depths of the four stages, their widths, width of the decoder
MIT_SIZES: dict[str, tuple[list[int], list[int], int]] = {
    "b0": ([2, 2, 2, 2], [32, 64, 160, 256], 256),
    "b1": ([2, 2, 2, 2], [64, 128, 320, 512], 256),
    "b2": ([3, 4, 6, 3], [64, 128, 320, 512], 768),
    "b3": ([3, 4, 18, 3], [64, 128, 320, 512], 768),
    "b4": ([3, 8, 27, 3], [64, 128, 320, 512], 768),
    "b5": ([3, 6, 40, 3], [64, 128, 320, 512], 768),
}
STAGES = ["stage1", "stage2", "stage3", "stage4"]


class SegformerFeatures(FeatureExtractor):
    """transformers' SegFormer up to, and without, its classifier (stride 4)."""

    backbone: "PreTrainedModel"

    def __init__(self, model: "SegformerForSemanticSegmentation") -> None:
        super().__init__()
        self.backbone = model.segformer
        self.decoder = model.decode_head
        self.decoder.classifier = nn.Identity()  # type: ignore[assignment]
        self.out_channels = model.config.decoder_hidden_size
        self.stride = model.config.strides[0]

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images, output_hidden_states=True).hidden_states
        return Features(self.decoder(maps))


class UperNetFeatures(FeatureExtractor):
    """transformers' UPerNet up to, and without, its classifier; the third stage serves the auxiliary head."""

    stride = 4
    backbone: "PreTrainedModel"

    def __init__(self, model: "UperNetForSemanticSegmentation") -> None:
        super().__init__()
        self.backbone = model.backbone
        self.decoder = model.decode_head
        self.out_channels = model.decode_head.classifier.in_channels
        self.decoder.classifier = nn.Identity()  # type: ignore[assignment]
        if model.auxiliary_head is not None:
            self.auxiliary_channels = (model.backbone.channels[2],)

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images).feature_maps
        return Features(self.decoder(maps), (maps[2],) if self.auxiliary_channels else ())


def with_weights(backbone: "Network", weights: str | None, published: str) -> "Network":
    """``backbone`` itself (None), or one like it from the hub ("pretrained"), a local folder or a file."""
    if weights is None:
        return backbone
    if weights == "pretrained":
        with fetching(f"{published} (weights=pretrained)", WEIGHTS_INSTEAD):
            return _reported(backbone, published, None, published)
    if Path(weights).is_dir():
        return _reported(backbone, weights, None, weights)
    return load_state(backbone, read_weights(weights), weights)


def freeze_final_norm(backbone: "Network") -> "Network":
    """``backbone``, its final norm frozen if it is a Swin.

    No map passes through that norm, and parameters that no gradient reaches stop distributed training.
    """
    swin = dict(backbone.named_children()).get("swin")
    if swin is not None:
        swin.get_submodule("layernorm").requires_grad_(False)
    return backbone


def load_state(model: "Network", state: dict[str, Tensor], origin: str) -> "Network":
    """A model like ``model`` with the tensors of ``state``, named as any version of transformers does."""
    return _reported(model, None, state, origin)


def _reported(model: "Network", place: str | None, state: dict[str, Tensor] | None, origin: str) -> "Network":
    """Let transformers load; what it reports as missing is an error, what it left over a warning."""
    with naming_broken(origin):
        found = type(model).from_pretrained(
            place,
            config=model.config,
            state_dict=state,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    loaded, report = cast("tuple[Network, LoadingReport]", found)
    faults = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    # Swin's backbone adds norms that no classification checkpoint has; they start afresh.
    faults = [name for name in faults if not name.startswith("hidden_states_norms.")]
    if faults:
        raise WeightsError(
            f"{origin} does not fit {type(model).__name__}, missing or of another shape{listed(faults)}"
        )
    unused = sorted(map(str, report["unexpected_keys"]))
    if unused:
        warnings.warn(f"{origin}: tensors not used{listed(unused)}", stacklevel=3)
    return loaded


def segformer(depths: list[int], widths: list[int], decoder: int) -> SegformerFeatures:
    """A SegFormer with random weights: stage depths and widths, and the width of the decoder."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=depths, hidden_sizes=widths, decoder_hidden_size=decoder)
    return SegformerFeatures(SegformerForSemanticSegmentation(config))


def segformer_model(sizes: JSON) -> "SegformerModel":
    """SegFormer's backbone alone, with random weights, from the fields of its configuration."""
    from transformers import SegformerConfig, SegformerModel

    return SegformerModel(SegformerConfig(**sizes))


def mit_segformer(size: str, weights: str | None) -> SegformerFeatures:
    """SegFormer over MiT-b0 .. b5. ``weights``: None, "pretrained" (ImageNet, from the hub) or a file."""
    features = segformer(*MIT_SIZES[size])
    features.backbone = with_weights(features.backbone, weights, f"nvidia/mit-{size}")
    return features


def swin_config(width: int, depths: list[int], heads: list[int], window: int) -> "SwinConfig":
    """A Swin transformer that gives the maps of all four stages."""
    from transformers import SwinConfig

    fields = {"embed_dim": width, "depths": depths, "num_heads": heads, "window_size": window}
    return SwinConfig.from_dict({**fields, "drop_path_rate": 0.3, "out_features": STAGES})


def swin_upernet(
    swin: "SwinConfig", weights: str | None, *, published: str = "", channels: int = 512
) -> UperNetFeatures:
    """UPerNet over a Swin transformer. ``published`` names the weights on the hub that "pretrained" means."""
    from transformers import UperNetConfig, UperNetForSemanticSegmentation

    config = UperNetConfig(backbone_config=swin, hidden_size=channels, use_auxiliary_head=True)
    features = UperNetFeatures(UperNetForSemanticSegmentation(config))
    features.backbone = freeze_final_norm(with_weights(features.backbone, weights, published))
    return features


def swin_mask2former(
    swin: "SwinConfig", num_classes: int, weights: str | None, *, published: str = ""
) -> "Mask2FormerForUniversalSegmentation":
    """transformers' Mask2Former over a Swin transformer, with its own class predictor still in place."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    config = Mask2FormerConfig(backbone_config=swin)
    config.num_labels = num_classes
    model = Mask2FormerForUniversalSegmentation(config)
    pixels = model.model.pixel_level_module
    pixels.encoder = freeze_final_norm(with_weights(pixels.encoder, weights, published))
    return model


def dissect_transformers(model: "PreTrainedModel") -> Dissection:
    """SegFormer and UPerNet by their parts; any other semantic segmentation model at its one classifier."""
    source: Recipe = {"source": "transformers", "class": type(model).__name__, "config": config_of(model)}
    if type(model).__name__ == "SegformerForSemanticSegmentation":
        segformer = cast("SegformerForSemanticSegmentation", model)
        classifier = segformer.decode_head.classifier
        return Dissection(SegformerFeatures(segformer), classifier, classifier.out_channels, source)
    if type(model).__name__ == "UperNetForSemanticSegmentation":
        upernet = cast("UperNetForSemanticSegmentation", model)
        classifier = upernet.decode_head.classifier
        auxiliary = _upernet_auxiliary(upernet)
        return Dissection(UperNetFeatures(upernet), classifier, classifier.out_channels, source, auxiliary)
    return dissect_at(model, _only_classifier(model), source)


def config_of(model: "PreTrainedModel") -> JSON:
    """The model's configuration as plain data."""
    return json.loads(model.config.to_json_string(use_diff=False))


def _upernet_auxiliary(model: "UperNetForSemanticSegmentation") -> tuple[nn.Module, ...]:
    head = model.auxiliary_head
    return () if head is None else (nn.Sequential(head.convs, head.classifier),)


def _only_classifier(model: "PreTrainedModel") -> str:
    """The one convolution with as many outputs as there are labels, auxiliary heads aside."""
    names = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d)
        and layer.out_channels == model.config.num_labels
        and not name.startswith("auxiliary")
    ]
    if len(names) != 1 or not type(model).__name__.endswith("ForSemanticSegmentation"):
        raise ConversionError(
            f"{type(model).__name__}: {len(names)} layers could be its classifier ({', '.join(names)}); "
            'name the one that makes class scores: convert(model, classifier="...")'
        )
    return _outermost(model, names[0])


def _outermost(model: nn.Module, name: str) -> str:
    """The largest block around a layer that has no parameters but the layer's, as it may look into it."""
    size = sum(value.numel() for value in model.get_submodule(name).parameters())
    parent = name.rpartition(".")[0]
    while parent and sum(value.numel() for value in model.get_submodule(parent).parameters()) == size:
        name, parent = parent, parent.rpartition(".")[0]
    return name


def rebuild_transformers(source: Recipe) -> nn.Module:
    """The network a recipe describes, with random weights."""
    import transformers

    kind = _segmenter_class(transformers, source["class"])
    assert kind.config_class is not None
    return kind(kind.config_class.from_dict(_without_downloads(source["config"])))


def _without_downloads(config: Value) -> Value:
    """A configuration, and those inside it, that start their backbones from random weights."""
    if isinstance(config, list):
        return [_without_downloads(each) for each in config]
    if not isinstance(config, dict):
        return config
    inside = {key: _without_downloads(value) for key, value in config.items()}
    return inside | {"use_pretrained_backbone": False} if inside.get("use_pretrained_backbone") else inside


def _segmenter_class(transformers: ModuleType, name: str) -> "type[PreTrainedModel]":
    if not name.endswith(("ForSemanticSegmentation", "ForUniversalSegmentation")):
        raise ValueError(f"{name!r} is not a segmentation model of transformers")
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"this version of transformers has no {name!r}")
    return kind


def open_transformers(place: str, config: JSON) -> nn.Module:
    """The segmentation network of transformers in the folder, or under the hub's name, ``place``.

    ``config``: what its config.json says. Tensors that the network needs and the file lacks are an error.
    """
    import transformers

    names = config.get("architectures") or [config.get("model_type", "its network")]
    try:
        kind = _segmenter_class(transformers, str(names[0]))
    except ValueError as error:
        raise ConversionError(
            f"{place}: {error}; give one whose config.json names a ...ForSemanticSegmentation, or "
            "Mask2Former, as its architecture"
        ) from error
    with naming_broken(place):
        found = kind.from_pretrained(place, output_loading_info=True)
    model, report = cast("tuple[PreTrainedModel, LoadingReport]", found)
    missing = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if missing:
        raise WeightsError(f"{place}: its weights lack{listed(missing)}; fetch or write it again")
    return model.float()


def normalisation(preprocessor: JSON) -> tuple[Triple, Triple]:
    """Mean and std that a preprocessor_config.json tells, ImageNet's where it tells none."""
    if preprocessor.get("do_flip_channel_order"):
        warnings.warn(
            "this network was trained on BGR images and is given RGB: train it further", stacklevel=2
        )
    if preprocessor.get("do_normalize") is False:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean, std = preprocessor.get("image_mean"), preprocessor.get("image_std")
    return tuple(mean or IMAGENET_MEAN), tuple(std or IMAGENET_STD)
