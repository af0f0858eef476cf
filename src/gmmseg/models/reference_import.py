"""Checkpoints of the reference project, the only public GMMSeg weights, as segmenters of ours.

They hold a SegFormer with that project's decoder and head. The backbone is the same network as
transformers' SegformerModel under other names; the decoder differs from transformers' and is built here.
"""

import re
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gmmseg.json_tree import JSON
from gmmseg.mixture import ClassMixture
from gmmseg.models.features import FeatureExtractor, Features, conv_bn_relu, resize
from gmmseg.models.heads import HEAD_PRESETS, GMMHead, HeadSettings, make_head, present_words
from gmmseg.models.huggingface import load_state, segformer_model
from gmmseg.models.recipe import Recipe
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.weights import WeightsError, listed, read_pickle, read_weights

if TYPE_CHECKING:
    from transformers import SegformerModel

MEAN = (123.675 / 255, 116.28 / 255, 103.53 / 255)
STD = (58.395 / 255, 57.12 / 255, 57.375 / 255)

UNUSED = ("queue", "queue_ptr", "iteration_counter", "eye_matrix", "conv_seg.weight", "conv_seg.bias")
"""Entries of the decode head that are training state, or belong to a classifier that is never called."""


class ReferenceSegformerFeatures(FeatureExtractor):
    """SegFormer with convolutions, batch norm and ReLU in its decoder: features at stride 4."""

    mean, std, stride = MEAN, STD, 4
    backbone: "SegformerModel"

    def __init__(self, backbone: "SegformerModel", widths: list[int], channels: int) -> None:
        super().__init__()
        self.backbone = backbone
        for module in backbone.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-6  # transformers' is 1e-5
        self.convs = nn.ModuleList([conv_bn_relu(width, channels, 1) for width in widths])
        self.fuse = conv_bn_relu(len(widths) * channels, channels, 1)
        self.dropout = nn.Dropout2d(0.1)
        self.out_channels = channels

    def forward(self, images: Tensor) -> Features:
        maps = self.backbone(images, output_hidden_states=True).hidden_states
        same = [resize(conv(each), maps[0].shape[-2:]) for conv, each in zip(self.convs, maps)]
        return Features(self.dropout(self.fuse(torch.cat(same, dim=1))))


def import_reference(path: str | Path) -> Segmenter:
    """The segmenter in a checkpoint of the reference project, in evaluation mode.

    Its evidence is the best log density of each class, without component weights, as in that project: the
    log weights are zero. Its standard deviations become variances, its means are brought to unit length.
    """
    try:
        return _import(read_weights(path), path)
    except (WeightsError, ImportError, OSError):
        raise
    except Exception as error:  # tensors of shapes that no such network has
        raise WeightsError(
            f"{path}: not a checkpoint of the reference project's SegFormer ({error}); fetch it again"
        ) from error


def _import(state: dict[str, Tensor], path: str | Path) -> Segmenter:
    segmenter = build_reference(_recipe(state, path))
    features, head = segmenter.features, segmenter.head
    assert isinstance(features, ReferenceSegformerFeatures)
    assert isinstance(head, GMMHead)
    loaded = load_state(features.backbone, _backbone_state(state), str(path))
    features.backbone.load_state_dict(loaded.state_dict())
    features.load_state_dict(_decoder_state(state, path), strict=False)
    _fill_head(head, state, path)
    _warn_of_leftovers(state, path)
    _name_classes(segmenter, Path(path))
    return segmenter.eval()


def build_reference(recipe: Recipe) -> Segmenter:
    """The network of a recipe that `import_reference` wrote, with random weights."""
    settings = HeadSettings(**present_words(recipe["head"]))
    features = ReferenceSegformerFeatures(
        segformer_model(recipe["backbone"]), recipe["backbone"]["hidden_sizes"], recipe["channels"]
    )
    head = make_head(settings, recipe["channels"], recipe["num_classes"])
    return Segmenter(features, head, mean=MEAN, std=STD, recipe=recipe)


def _needed(state: dict[str, Tensor], name: str, path: str | Path) -> Tensor:
    if name not in state:
        raise WeightsError(
            f"{path}: not a checkpoint of the reference project's SegFormer, it has no {name!r}"
        )
    return state[name]


def _recipe(state: dict[str, Tensor], path: str | Path) -> Recipe:
    """Sizes of the network, read off the shapes of its tensors."""
    means = _needed(state, "decode_head.means", path)
    num_classes, components, dim = means.shape
    fused = _needed(state, "decode_head.fusion_conv.conv.weight", path)
    head = replace(HEAD_PRESETS["reference"], components=components, dim=dim)
    return {
        "source": "reference",
        "backbone": _backbone_sizes(state, path),
        "channels": fused.shape[0],
        "num_classes": num_classes,
        "head": asdict(head),
    }


def _backbone_sizes(state: dict[str, Tensor], path: str | Path) -> JSON:
    """The arguments of SegformerConfig. The first stage has one head, and all heads are equally wide."""
    patches = [_needed(state, f"backbone.layers.{s}.0.projection.weight", path) for s in range(4)]
    widths = [patch.shape[0] for patch in patches]
    depths, reductions, ratios = [], [], []
    for s, width in enumerate(widths):
        blocks = {int(m[1]) for name in state if (m := re.match(rf"backbone\.layers\.{s}\.1\.(\d+)\.", name))}
        depths.append(len(blocks))
        reduction = state.get(f"backbone.layers.{s}.1.0.attn.sr.weight")
        reductions.append(1 if reduction is None else reduction.shape[-1])
        ratios.append(_needed(state, f"backbone.layers.{s}.1.0.ffn.layers.0.weight", path).shape[0] // width)
    return {
        "hidden_sizes": widths,
        "depths": depths,
        "sr_ratios": reductions,
        "mlp_ratios": ratios,
        "num_attention_heads": [width // widths[0] for width in widths],
        "patch_sizes": [patch.shape[-1] for patch in patches],
    }


# Names within a stage of the reference, and their names in transformers; {j} is a block.
_RENAMED = {
    "0.projection": "patch_embeddings.{s}.proj",
    "0.norm": "patch_embeddings.{s}.layer_norm",
    "2": "layer_norm.{s}",
    "1.{j}.norm1": "block.{s}.{j}.layer_norm_1",
    "1.{j}.norm2": "block.{s}.{j}.layer_norm_2",
    "1.{j}.attn.attn.out_proj": "block.{s}.{j}.attention.output.dense",
    "1.{j}.attn.sr": "block.{s}.{j}.attention.self.sr",
    "1.{j}.attn.norm": "block.{s}.{j}.attention.self.layer_norm",
    "1.{j}.ffn.layers.0": "block.{s}.{j}.mlp.dense1",
    "1.{j}.ffn.layers.1": "block.{s}.{j}.mlp.dwconv.dwconv",
    "1.{j}.ffn.layers.4": "block.{s}.{j}.mlp.dense2",
}


def _backbone_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors under transformers' names; names it does not know stay, and are reported."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        if match := re.match(r"backbone\.layers\.(\d+)\.(.+)", name):
            renamed.update(_rename(match[1], match[2], value))
    return renamed


def _rename(s: str, name: str, value: Tensor) -> dict[str, Tensor]:
    block = re.match(r"1\.(\d+)\.", name)
    j = block[1] if block else ""
    pattern = re.sub(r"^1\.\d+\.", "1.{j}.", name)
    if pattern.startswith("1.{j}.attn.attn.in_proj_"):
        kind = pattern.rpartition("_")[2]
        parts = zip(("query", "key", "value"), value.chunk(3))
        return {f"encoder.block.{s}.{j}.attention.self.{each}.{kind}": part for each, part in parts}
    layer, _, kind = pattern.rpartition(".")
    if layer not in _RENAMED:
        return {f"layers.{s}.{name}": value}
    if layer in ("1.{j}.ffn.layers.0", "1.{j}.ffn.layers.4") and kind == "weight":
        value = value.flatten(1)  # 1x1 convolutions here, linear layers there
    return {f"encoder.{_RENAMED[layer].format(s=s, j=j)}.{kind}": value}


def _decoder_state(state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The decoder's tensors under the names of ReferenceSegformerFeatures."""
    taken = {}
    for ours, theirs in [*((f"convs.{s}", f"convs.{s}") for s in range(4)), ("fuse", "fusion_conv")]:
        taken[f"{ours}.0.weight"] = _needed(state, f"decode_head.{theirs}.conv.weight", path)
        for kind in ("weight", "bias", "running_mean", "running_var"):
            taken[f"{ours}.1.{kind}"] = _needed(state, f"decode_head.{theirs}.bn.{kind}", path)
    return taken


@torch.no_grad()
def _fill_head(head: GMMHead, state: dict[str, Tensor], path: str | Path) -> None:
    def take(target: Tensor, name: str) -> None:
        target.copy_(_needed(state, f"decode_head.{name}", path).view_as(target))

    linear, norm, _, layer_norm = head.projection.children()
    take(linear.get_parameter("weight"), "projection.conv.weight")
    for kind in ("weight", "bias", "running_mean", "running_var"):
        take(getattr(norm, kind), f"projection.bn.{kind}")
    for kind in ("weight", "bias"):
        take(getattr(layer_norm, kind), f"feat_norm.{kind}")
        take(getattr(head.link.norm, kind), f"mask_norm.{kind}")
    _fill_mixture(head.mixture, state, path)


def _fill_mixture(mixture: ClassMixture, state: dict[str, Tensor], path: str | Path) -> None:
    mixture.means.copy_(nn.functional.normalize(_needed(state, "decode_head.means", path), dim=-1))
    mixture.variances.copy_(_needed(state, "decode_head.diagonal", path).square())
    mixture.log_weights.zero_()
    # Their class scores know no prior; a constant one would only shift them all.
    mixture.log_prior.zero_()


def _warn_of_leftovers(state: dict[str, Tensor], path: str | Path) -> None:
    """Entries the layout does not define may mean another network, so they are not passed over in silence."""
    known = re.compile(
        r"backbone\.layers\.\d+\.|decode_head\.((convs\.\d+|fusion_conv|projection)\.(conv\.weight|bn\.\w+)"
        r"|(feat_norm|mask_norm)\.(weight|bias)|means|diagonal)$"
    )
    unused = {f"decode_head.{name}" for name in UNUSED}
    strange = [name for name in state if name not in unused and not known.match(name)]
    if strange:
        warnings.warn(
            f"{path}: not used, the reference project's layout lacks them{listed(strange)}", stacklevel=3
        )


def _name_classes(segmenter: Segmenter, path: Path) -> None:
    """Names and colours of the classes, where the checkpoint tells them."""
    meta = {} if path.suffix == ".safetensors" else read_pickle(path).get("meta") or {}
    names, colours = meta.get("CLASSES"), meta.get("PALETTE")
    if names and len(names) == segmenter.num_classes:
        segmenter.label_names = tuple(names)
    if colours and len(colours) == segmenter.num_classes:
        segmenter.colours = tuple((int(r), int(g), int(b)) for r, g, b in colours)
