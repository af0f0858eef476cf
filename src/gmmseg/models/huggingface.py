"""The door to transformers: SegFormer, UPerNet and others of their kind as feature extractors."""

import json
from typing import Any

from torch import Tensor, nn

from gmmseg.models.convert import ConversionError, Dissection, dissect_at
from gmmseg.models.features import FeatureExtractor, Features
from gmmseg.models.weights import load_backbone

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

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone = model.segformer
        self.decoder = model.decode_head
        self.decoder.classifier = nn.Identity()
        self.out_channels = model.config.decoder_hidden_size
        self.stride = model.config.strides[0]

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images, output_hidden_states=True).hidden_states
        return Features(self.decoder(maps))


class UperNetFeatures(FeatureExtractor):
    """transformers' UPerNet up to, and without, its classifier; the third stage serves the auxiliary head."""

    stride = 4

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.decoder = model.decode_head
        self.out_channels = model.decode_head.classifier.in_channels
        self.decoder.classifier = nn.Identity()
        if model.auxiliary_head is not None:
            self.auxiliary_channels = (model.backbone.channels[2],)

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images).feature_maps
        return Features(self.decoder(maps), (maps[2],) if self.auxiliary_channels else ())


def segformer(depths: list[int], widths: list[int], decoder: int) -> SegformerFeatures:
    """A SegFormer with random weights: stage depths and widths, and the width of the decoder."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=depths, hidden_sizes=widths, decoder_hidden_size=decoder)
    return SegformerFeatures(SegformerForSemanticSegmentation(config))


def mit_segformer(size: str, weights: str | None) -> SegformerFeatures:
    """SegFormer over MiT-b0 .. b5. ``weights``: None, "pretrained" (ImageNet, from the hub) or a file."""
    features = segformer(*MIT_SIZES[size])
    if weights == "pretrained":
        from transformers import SegformerModel

        features.backbone = SegformerModel.from_pretrained(f"nvidia/mit-{size}")
    elif weights is not None:
        load_backbone(features.backbone, weights)
    return features


def swin_config(width: int, depths: list[int], heads: list[int], window: int) -> Any:
    """A Swin transformer that gives the maps of all four stages."""
    from transformers import SwinConfig

    return SwinConfig(
        embed_dim=width,
        depths=depths,
        num_heads=heads,
        window_size=window,
        drop_path_rate=0.3,
        out_features=STAGES,
    )


def swin_upernet(
    swin: Any, weights: str | None, *, published: str = "", channels: int = 512
) -> UperNetFeatures:
    """UPerNet over a Swin transformer. ``published`` names the weights on the hub that "pretrained" means."""
    from transformers import SwinBackbone, UperNetConfig, UperNetForSemanticSegmentation

    config = UperNetConfig(backbone_config=swin, hidden_size=channels, use_auxiliary_head=True)
    features = UperNetFeatures(UperNetForSemanticSegmentation(config))
    if weights == "pretrained":
        features.backbone = SwinBackbone.from_pretrained(published, out_features=STAGES)
    elif weights is not None:
        load_backbone(features.backbone, weights)
    return features


def swin_mask2former(swin: Any, num_classes: int, weights: str | None, *, published: str = "") -> Any:
    """transformers' Mask2Former over a Swin transformer, with its own class predictor still in place."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinBackbone

    model = Mask2FormerForUniversalSegmentation(
        Mask2FormerConfig(backbone_config=swin, num_labels=num_classes)
    )
    if weights == "pretrained":
        model.model.pixel_level_module.encoder = SwinBackbone.from_pretrained(published, out_features=STAGES)
    elif weights is not None:
        load_backbone(model.model.pixel_level_module.encoder, weights)
    return model


def dissect_transformers(model: Any) -> Dissection:
    """SegFormer and UPerNet by their parts; any other semantic segmentation model at its one classifier."""
    source = {"source": "transformers", "class": type(model).__name__, "config": config_of(model)}
    if type(model).__name__ == "SegformerForSemanticSegmentation":
        classifier = model.decode_head.classifier
        return Dissection(SegformerFeatures(model), classifier, classifier.out_channels, source)
    if type(model).__name__ == "UperNetForSemanticSegmentation":
        classifier = model.decode_head.classifier
        return Dissection(
            UperNetFeatures(model), classifier, classifier.out_channels, source, _upernet_auxiliary(model)
        )
    return dissect_at(model, _only_classifier(model), source)


def config_of(model: Any) -> dict[str, Any]:
    """The model's configuration as plain data."""
    return json.loads(model.config.to_json_string(use_diff=False))


def _upernet_auxiliary(model: Any) -> tuple[nn.Module, ...]:
    head = model.auxiliary_head
    return () if head is None else (nn.Sequential(head.convs, head.classifier),)


def _only_classifier(model: Any) -> str:
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
            f"{type(model).__name__}: {len(names)} layers could be its classifier ({', '.join(names)}); name the one "
            'that makes class scores: convert(model, classifier="...")'
        )
    return names[0]


def rebuild_transformers(source: dict[str, Any]) -> nn.Module:
    """The network a recipe describes, with random weights."""
    import transformers

    name = source["class"]
    if not name.endswith(("ForSemanticSegmentation", "ForUniversalSegmentation")):
        raise ValueError(f"{name!r} is not a segmentation model of transformers")
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"this version of transformers has no {name!r}")
    return kind(kind.config_class.from_dict(source["config"]))
