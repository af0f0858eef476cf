"""A softmax classifier beside a generative head: that of the model which was adapted, as it was.

Two classifiers on one backbone err in different places. Their logits are averaged, which is the geometric
mean of their posteriors: labels stay near those that the softmax model was trusted for.
"""

import copy
import warnings
from typing import Literal, Self, cast

from torch import Tensor, nn

from gmmseg.models.features import Features, SplitFeatures
from gmmseg.models.heads import SoftmaxHead

Kind = Literal["decoder", "head"]


class Companion(nn.Module):
    """The classifier of a softmax model and, unless the features are the same, its decoder; never trained.

    ``decoder`` makes features of the maps of a backbone that it does not hold; None: ``head`` sees the
    features that the generative head sees.
    """

    def __init__(self, decoder: SplitFeatures | None, head: SoftmaxHead) -> None:
        super().__init__()
        self.decoder, self.head = decoder, head
        self.requires_grad_(False)
        self.train(False)

    @property
    def kind(self) -> Kind:
        """What it holds of the softmax model beside the last layer."""
        return "head" if self.decoder is None else "decoder"

    def train(self, mode: bool = True) -> Self:
        """Its batch norms keep their statistics, whatever is trained beside it."""
        return super().train(False)

    def forward(
        self, features: Features, maps: tuple[Tensor, ...] | None, image_size: tuple[int, int]
    ) -> Tensor:
        """Logits (b c h w) of the features, or of the backbone's maps of images of a size (H, W)."""
        if self.decoder is not None:
            assert maps is not None, "a decoder needs the maps of a network that can be split"
            features = self.decoder.decode(maps, image_size)
        return cast(Tensor, self.head(features.main).logits)


def say_left_behind(companion: Companion | None) -> None:
    """Warn that a model goes on without its companion, if it had one."""
    if companion is not None:
        warnings.warn(
            "the softmax classifier that adapt had kept beside the mixtures is left behind: from here on "
            "labels are those of the new head alone",
            stacklevel=3,
        )


def companion_of(features: nn.Module, head: nn.Module, kind: Kind) -> Companion:
    """A copy of the classifier of a softmax model and, for the kind ``decoder``, of its decoder.

    ``features`` and ``head`` are the model's; ValueError where these have no such parts.
    """
    if not isinstance(head, SoftmaxHead):
        raise ValueError("only a softmax classifier is kept beside a generative head")
    if kind == "head":
        return Companion(None, copy.deepcopy(head))
    if not isinstance(features, SplitFeatures):
        raise ValueError("this network cannot be split into backbone and decoder")
    # The backbone is left out of the copy: the maps come from that of the model beside it.
    without: dict[int, object] = {id(features.backbone): nn.Identity()}
    return Companion(copy.deepcopy(features, without), copy.deepcopy(head))
