"""A fitted mixture as constants of a graph: for networks that will not be trained any further.

What `ClassMixture` works out anew at each pass, since EM may have moved it, is worked out once here. All of
it acts on maps (b ... h w), as 1x1 convolutions without blocks or branches, so that it can be compiled and
exported for images of any size.
"""

from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture.blocks import product_form
from gmmseg.mixture.coordinates import Coordinates
from gmmseg.mixture.mixture import ClassMixture


class FoldedCoordinates(nn.Module):
    """Maps of features (b f h w) -> maps of points (b d h w), as the coordinates place them now."""

    matrix: Tensor | None
    shift: Tensor | None

    def __init__(self, coordinates: Coordinates, projection: nn.Linear | None = None) -> None:
        super().__init__()
        self.unit_length = coordinates.unit_length
        affine = coordinates.affine(projection)
        self.register_buffer("matrix", None if affine is None else _kernel(affine[0]))
        self.register_buffer("shift", None if affine is None else affine[1].detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        points = features if self.matrix is None else F.conv2d(features, self.matrix, self.shift)
        return F.normalize(points, dim=1) if self.unit_length else points


class FoldedMixture(nn.Module):
    """Maps of points (b d h w) -> maps of evidence (b c h w), with the means and variances of this moment."""

    centre: Tensor
    weight: Tensor
    bias: Tensor

    @torch.no_grad()
    def __init__(self, mixture: ClassMixture) -> None:
        super().__init__()
        self.winner = mixture.winner
        self.num_classes, self.num_components = mixture.num_classes, mixture.num_components
        centre, weight, bias = product_form(mixture.means, mixture.variances, mixture.log_weights)
        self.register_buffer("centre", centre[:, None, None].clone())
        self.register_buffer("weight", _kernel(weight.flatten(0, 1)))
        self.register_buffer("bias", bias.flatten().clone())

    def forward(self, points: Tensor) -> Tensor:
        centred = points - self.centre
        product = F.conv2d(torch.cat([centred.square(), centred], dim=1), self.weight, self.bias)
        # Joined one after the other: runtimes are slow at reductions over an axis in the middle.
        densities = product.split(self.num_classes, dim=1)
        best = reduce(torch.maximum, densities)
        if self.winner or self.num_components == 1:
            return best
        return best + reduce(torch.add, [(each - best).exp() for each in densities]).log()


def _kernel(matrix: Tensor) -> Tensor:
    """A matrix (out in) as the kernel of a 1x1 convolution."""
    return matrix.detach().float()[:, :, None, None].clone()
