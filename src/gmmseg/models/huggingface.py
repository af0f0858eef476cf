"""The door to transformers: SegFormer, UPerNet and Mask2Former as feature extractors."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from gmmseg.models.features import FeatureExtractor, Features
from gmmseg.models.weights import load_backbone

if TYPE_CHECKING:
    from transformers import SegformerForSemanticSegmentation, UperNetForSemanticSegmentation

# depths of the four stages, their widths, width of the decoder
MIT_SIZES: dict[str, tuple[list[int], list[int], int]] = {
    "b0": ([2, 2, 2, 2], [32, 64, 160, 256], 256),
    "b1": ([2, 2, 2, 2], [64, 128, 320, 512], 256),
    "b2": ([3, 4, 6, 3], [64, 128, 320, 512], 768),
    "b3": ([3, 4, 18, 3], [64, 128, 320, 512], 768),
    "b4": ([3, 8, 27, 3], [64, 128, 320, 512], 768),
    "b5": ([3, 6, 40, 3], [64, 128, 320, 512], 768),
}


class SegformerFeatures(FeatureExtractor):
    """transformers' SegFormer up to, and without, its classifier (stride 4)."""

    stride = 4

    def __init__(self, model: "SegformerForSemanticSegmentation") -> None:
        super().__init__()
        self.backbone = model.segformer
        self.decoder = model.decode_head
        self.decoder.classifier = nn.Identity()
        self.out_channels = model.config.decoder_hidden_size

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images, output_hidden_states=True).hidden_states
        return Features(self.decoder(maps))


class UperNetFeatures(FeatureExtractor):
    """transformers' UPerNet up to, and without, its classifier (stride 4 over Swin and ConvNeXt)."""

    stride = 4

    def __init__(self, model: "UperNetForSemanticSegmentation") -> None:
        super().__init__()
        self.backbone = model.backbone
        self.decoder = model.decode_head
        self.out_channels = model.decode_head.classifier.in_channels
        self.decoder.classifier = nn.Identity()
        self.auxiliary_channels = (model.backbone.channels[model.config.auxiliary_in_channels and 2],)

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images).feature_maps
        return Features(self.decoder(maps), (maps[2],))


def mit_segformer(size: str, weights: str | None) -> SegformerFeatures:
    """SegFormer over MiT-b0 .. b5. ``weights``: None, "pretrained" (ImageNet, from the hub) or a file."""
    depths, widths, decoder = MIT_SIZES[size]
    features = segformer_features(depths, widths, decoder)
    if weights == "pretrained":
        from transformers import SegformerModel

        features.backbone = SegformerModel.from_pretrained(f"nvidia/mit-{size}")
    elif weights is not None:
        load_backbone(features.backbone, weights)
    return features


def segformer_features(depths: list[int], widths: list[int], decoder: int) -> SegformerFeatures:
    """A SegFormer with random weights: stage depths and widths, and the width of the decoder."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=depths, hidden_sizes=widths, decoder_hidden_size=decoder)
    return SegformerFeatures(SegformerForSemanticSegmentation(config))
