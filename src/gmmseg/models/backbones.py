"""The door to timm: its networks as multi-scale feature extractors."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gmmseg.models.hub import WEIGHTS_INSTEAD, fetching
from gmmseg.models.weights import load_backbone


class TimmBackbone(nn.Module):
    """A timm network cut into feature maps: images (b 3 h w) -> list of maps, finest first.

    ``channels`` and ``reductions`` (strides) describe the maps; ``mean`` and ``std`` are those the
    published weights were trained with. ``weights``: None (random), "pretrained" (timm's own, from the
    hub) or a local file.
    """

    def __init__(
        self,
        name: str,
        *,
        out_indices: tuple[int, ...],
        weights: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        import timm

        if not timm.is_model(name):
            raise ValueError(f"timm has no model {name!r}; timm.list_models() lists those it has")
        pretrained = weights == "pretrained"
        access = fetching(f"{name} (weights=pretrained)", WEIGHTS_INSTEAD) if pretrained else nullcontext()
        with access:
            net: Any = timm.create_model(
                name,
                features_only=True,
                out_indices=out_indices,
                pretrained=pretrained,
                **(options or {}),
            )
        self.net = net
        self.channels: list[int] = net.feature_info.channels()
        self.reductions: list[int] = net.feature_info.reduction()
        published = net.pretrained_cfg
        self.mean, self.std = tuple(published["mean"]), tuple(published["std"])
        if weights is not None and not pretrained:
            load_backbone(net, weights)

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.net(images)


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
