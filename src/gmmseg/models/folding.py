"""A trained segmenter as a graph of constants: what is exported, and what a compiler can take in at once.

`folded` gives a copy of a segmenter whose head, and density beside it, are a few operators on maps. It is
true of the weights of this moment: train the original, and fold again.
"""

import torch
from torch import Tensor, nn

from gmmseg.mixture.folded import FoldedCoordinates, FoldedMixture
from gmmseg.mixture.links import Link
from gmmseg.models.conversion import share_weights
from gmmseg.models.density import CellDensity
from gmmseg.models.heads import GMMHead
from gmmseg.models.outputs import SegmenterOutput
from gmmseg.models.segmenter import Segmenter


class FoldedHead(nn.Module):
    """What a `GMMHead` in evaluation mode returns, from projection to logits in a few operators."""

    log_prior: Tensor

    def __init__(self, head: GMMHead) -> None:
        super().__init__()
        linear, after = _linear_first(head.projection)
        coordinates = head.mixture.coordinates
        self.num_classes = head.num_classes
        self.before = nn.Identity() if after is None else _Rowwise(head.projection)
        self.points = FoldedCoordinates(coordinates, None if after is not None else linear)
        self.evidence = FoldedMixture(head.mixture)
        assert isinstance(head.link, Link)
        self.link = head.link
        self.register_buffer("log_prior", head.mixture.log_prior.clone())

    def forward(self, features: Tensor) -> SegmenterOutput:
        """Features (b f h w) -> maps of logits, points and evidence, each (b ... h w)."""
        points = self.points(self.before(features.float()))
        evidence = self.evidence(points)
        return SegmenterOutput(self.link.on_maps(evidence, self.log_prior), points, evidence)

    def classify(self, embeddings: Tensor) -> SegmenterOutput:
        """Embeddings (n f) -> rows of the same, (n ...)."""
        maps = self(embeddings[:, :, None, None])
        assert maps.points is not None
        assert maps.evidence is not None
        rows = (each[:, :, 0, 0] for each in (maps.logits, maps.points, maps.evidence))
        return SegmenterOutput(*rows)


class _Rowwise(nn.Module):
    """A module for rows (n f), applied to maps (b f h w)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, maps: Tensor) -> Tensor:
        b, f, h, w = maps.shape
        rows = self.module(maps.permute(0, 2, 3, 1).reshape(-1, f))
        return rows.reshape(b, h, w, -1).permute(0, 3, 1, 2)


def _linear_first(projection: nn.Module) -> tuple[nn.Linear | None, nn.Module | None]:
    """A projection as one linear layer, None for one that does nothing; and, where there is more to it than
    that, the whole of it."""
    if isinstance(projection, nn.Identity):
        return None, None
    if isinstance(projection, nn.Linear):
        return projection, None
    if isinstance(projection, nn.Sequential) and len(projection) == 2:
        linear, norm = projection
        if isinstance(linear, nn.Linear) and isinstance(norm, nn.BatchNorm1d):
            return _fused(linear, norm), None
    return None, projection


@torch.no_grad()
def _fused(linear: nn.Linear, norm: nn.BatchNorm1d) -> nn.Linear:
    """A linear layer and the batch norm after it, in evaluation mode, as one layer."""
    return torch.nn.utils.fusion.fuse_linear_bn_eval(linear, norm)


class FoldedDensity(nn.Module):
    """What a `CellDensity` returns."""

    familiar: Tensor

    def __init__(self, density: CellDensity) -> None:
        super().__init__()
        self.points = FoldedCoordinates(density.coordinates)
        self.evidence = FoldedMixture(density.mixture)
        unseen = ~density.mixture.fitted
        self.register_buffer(
            "familiar", torch.zeros(len(unseen)).masked_fill(unseen, -torch.inf)[:, None, None]
        )

    def forward(self, maps: Tensor) -> Tensor:
        return self.evidence(self.points(maps.float())) + self.familiar


def _folded_companion(companion: nn.Module) -> nn.Module:
    """A copy of a companion, its head folded where there is something to fold."""
    twin = share_weights(companion).eval()
    if isinstance(twin.head, GMMHead):
        twin.head = FoldedHead(twin.head).eval()
    return twin


def folded(segmenter: Segmenter) -> Segmenter:
    """A copy of ``segmenter`` in evaluation mode, its head and density folded; features are shared.

    Its answers are those of the original, but for rounding. It has no mixture, so EM cannot train it.
    """
    twin = share_weights(segmenter).eval()
    assert isinstance(twin, type(segmenter))
    if isinstance(twin.head, GMMHead):
        twin.head = FoldedHead(twin.head).eval()  # type: ignore[assignment]
    twin.companions = nn.ModuleList(_folded_companion(each) for each in twin.companions)
    if twin.density is not None:
        twin.density = FoldedDensity(twin.density).eval()  # type: ignore[assignment]
    twin.auxiliary_heads = nn.ModuleList()
    return twin
