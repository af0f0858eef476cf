"""A light decoder over any timm backbone: ``timm:resnet50``, ``timm:vit_small_patch14_dinov2@2,5,8,11``."""

from dataclasses import asdict

import torch

from gmmseg.models.backbones import FreezableBackbone, TimmBackbone, light_backbone
from gmmseg.models.conversion import freeze_unused
from gmmseg.models.features import FeatureExtractor
from gmmseg.models.heads import HeadSettings, present_words
from gmmseg.models.pyramid import PyramidFeatures
from gmmseg.models.recipe import Recipe
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.vit import ViTFeatures
from gmmseg.models.zoo import assemble


def build_light(name: str, num_classes: int, settings: HeadSettings, weights: str | None) -> Segmenter:
    """The segmenter of ``name``: a timm backbone, and after an @ which of its maps are taken.

    All of it can be trained; train.backbone_multiplier=0 freezes the backbone.
    """
    backbone, at, blocks = name.partition("@")
    features = light_features(light_backbone(backbone, _blocks(name, blocks) if at else None, weights))
    recipe: Recipe = {"source": "timm", "name": name, "num_classes": num_classes, "head": asdict(settings)}
    return assemble(features, num_classes, settings, recipe)


def rebuild_light(recipe: Recipe) -> Segmenter:
    """The segmenter a recipe of `build_light` describes, with random weights."""
    return build_light(
        recipe["name"], recipe["num_classes"], HeadSettings(**present_words(recipe["head"])), None
    )


def _blocks(name: str, listed: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(block) for block in listed.split(",")}))
    except ValueError:
        raise ValueError(
            f"timm:{name}: after the @ come numbers of maps, such as timm:vit_small_patch14_dinov2@2,5,8,11"
        ) from None


def light_features(backbone: TimmBackbone) -> FeatureExtractor:
    """The decoder that suits the maps: of one size, as a ViT's, or of several scales."""
    features: FeatureExtractor
    if len(set(backbone.reductions)) == 1:
        features = ViTFeatures(FreezableBackbone(backbone))
    else:
        features = PyramidFeatures(FreezableBackbone(backbone), multiple=max(backbone.reductions))
    _refuse_fixed_size(features, backbone)
    freeze_unused(features)
    return features


def _refuse_fixed_size(features: FeatureExtractor, backbone: TimmBackbone) -> None:
    """Images come in any size: a backbone made for one is refused before anything is trained."""
    side = max(backbone.reductions)
    features.eval()
    try:
        with torch.no_grad():
            features(torch.zeros(1, 3, 4 * side, 6 * side))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"timm's {backbone.name} does not take images of any size ({str(error)[:120]}); choose another, "
            "such as timm:resnet50 or timm:vit_small_patch14_dinov2"
        ) from error
    features.train()
