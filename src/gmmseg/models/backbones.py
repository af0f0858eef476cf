"""The door to timm: its networks as multi-scale feature extractors."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from gmmseg.json_tree import JSON
from gmmseg.models.hub import WEIGHTS_INSTEAD, HubError, fetching
from gmmseg.models.names import meant
from gmmseg.models.packaged import INSTALL, PACKAGED, PACKAGED_WORD, packaged_weights, required_weights
from gmmseg.models.weights import load_backbone

if TYPE_CHECKING:
    from timm.models import FeatureInfo

    class TimmNetwork(nn.Module):
        """What networks have that timm makes with ``features_only``, and its annotations do not say."""

        feature_info: FeatureInfo
        pretrained_cfg: JSON


class TimmBackbone(nn.Module):
    """A timm network cut into feature maps: images (b 3 h w) -> list of maps (b f h w), finest first.

    ``channels`` and ``reductions`` (strides) describe the maps; ``mean`` and ``std`` are those the
    published weights were trained with. ``weights``: None (random), "pretrained" (timm's own, from the hub,
    or of an installed package where no hub is reached), "packaged" (of the package alone) or a local file.
    """

    def __init__(
        self,
        name: str,
        *,
        out_indices: tuple[int, ...],
        weights: str | None = None,
        options: JSON | None = None,
    ) -> None:
        super().__init__()
        refuse_unknown(name)
        net = _network(name, weights, {"out_indices": out_indices, **(options or {})})
        self.name, self.net = name, net
        self.channels: list[int] = net.feature_info.channels()
        self.reductions: list[int] = net.feature_info.reduction()
        self.channels_last = str(getattr(net, "output_fmt", "")).endswith("NHWC")
        published = net.pretrained_cfg
        self.mean, self.std = tuple(published["mean"]), tuple(published["std"])

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.net(images)
        return [each.permute(0, 3, 1, 2) for each in maps] if self.channels_last else maps


def refuse_unknown(name: str) -> None:
    """Raise ValueError for what is no model of timm, with the names most like it."""
    import timm

    if not timm.is_model(name):
        near = meant(name, timm.list_models())
        raise ValueError(f"timm has no model {name!r}; timm.list_models() lists those it has{near}")


def _network(name: str, weights: str | None, options: JSON) -> "TimmNetwork":
    """timm's network as a feature extractor, with the weights that `TimmBackbone` describes."""
    import timm

    def create(pretrained: bool) -> "TimmNetwork":
        network = timm.create_model(name, features_only=True, pretrained=pretrained, **options)
        return cast("TimmNetwork", network)

    if weights == PACKAGED_WORD:
        return _with_state(create(False), required_weights(name))
    if weights != "pretrained":
        net = create(False)
        if weights is not None:
            load_backbone(net, weights)
        return net
    instead = f"{INSTALL}, or {WEIGHTS_INSTEAD}" if name in PACKAGED else WEIGHTS_INSTEAD
    try:
        with fetching(f"{name} (weights=pretrained)", instead):
            return create(True)
    except HubError:
        state = packaged_weights(name)
        if state is None:
            raise
        warnings.warn(
            f"{name}: not to be had from the hub, so its pretrained weights are those of the package "
            f"{PACKAGED[name].package}",
            stacklevel=5,
        )
        return _with_state(create(False), state)


def _with_state(network: "TimmNetwork", state: Mapping[str, Tensor]) -> "TimmNetwork":
    """The network with those of the tensors that it has."""
    network.load_state_dict({key: state[key] for key in network.state_dict()})
    return network


def light_backbone(name: str, blocks: tuple[int, ...] | None, weights: str | None) -> TimmBackbone:
    """Any timm network that gives maps of any size of image: its last four scales, or blocks of a ViT.

    ``blocks``: which ones, counted from 0; None takes all but the finest scales, or of a transformer's
    blocks, all of one size, the last of each quarter.
    """
    refuse_unknown(name)
    options = _size_options(name)
    scales = _feature_reductions(name, options)
    if blocks is None:
        blocks = _quarters(len(scales)) if _is_flat(scales) else tuple(range(len(scales)))[-4:]
    if not blocks or any(not 0 <= block < len(scales) for block in blocks):
        raise ValueError(
            f"timm's {name} gives maps 0 to {len(scales) - 1}: choose among them, such as "
            f"timm:{name}@{','.join(map(str, _quarters(len(scales))))}"
        )
    return TimmBackbone(name, out_indices=blocks, weights=weights, options=options)


def _is_flat(reductions: list[int]) -> bool:
    """Whether all maps are of one size, as those of a plain ViT."""
    return len(set(reductions)) == 1


def _quarters(depth: int) -> tuple[int, ...]:
    """The last block of each quarter: 2, 5, 8, 11 of twelve."""
    return tuple(sorted({max(1, round(depth * part / 4)) - 1 for part in (1, 2, 3, 4)}))


def _size_options(name: str) -> JSON:
    """What timm's network must be told in order to take images of any size: nothing, mostly."""
    import timm

    choices: tuple[JSON, ...] = ({"strict_img_size": False}, {"dynamic_img_size": True})
    for options in choices:
        try:
            with torch.device("meta"):
                timm.create_model(name, **options)
        except Exception:  # an argument that this network does not have, in whatever words
            continue
        return options
    return {}


def _feature_reductions(name: str, options: JSON) -> list[int]:
    """Strides of all the maps a timm network has; ValueError where it has none."""
    import timm

    try:
        with torch.device("meta"):
            network = timm.create_model(name, features_only=True, **options)
        return [each["reduction"] for each in cast("TimmNetwork", network).feature_info.info]
    except (RuntimeError, AttributeError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(
            f"timm's {name} gives no feature maps, so it cannot segment ({str(error)[:120]}); "
            "choose a backbone with maps, such as timm:resnet50 or timm:vit_small_patch14_dinov2"
        ) from error


class FrozenBackbone(nn.Module):
    """A backbone that is never trained: always in evaluation mode, no gradient kept."""

    def __init__(self, backbone: TimmBackbone) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "FrozenBackbone":
        super().train(mode)
        self.backbone.eval()
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> list[Tensor]:
        return self.backbone(images)


class FreezableBackbone(nn.Module):
    """A backbone that is trained, or, while none of its parameters takes a gradient, a frozen one."""

    def __init__(self, backbone: TimmBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    @property
    def frozen(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.backbone.parameters())

    def train(self, mode: bool = True) -> "FreezableBackbone":
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, images: Tensor) -> list[Tensor]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return self.backbone(images)
