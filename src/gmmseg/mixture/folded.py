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

_LEAST_SQUARE = 1e-24  # of a length: what has none stays zero
_MANY = 64
"""Classes from which each component has a product of its own: dividing one large product costs more."""


class FoldedCoordinates(nn.Module):
    """Maps of features (b f h w) -> maps of points (b d h w), as the coordinates place them now."""

    matrix: Tensor | None
    shift: Tensor | None

    def __init__(self, coordinates: Coordinates, projection: nn.Linear | None = None) -> None:
        super().__init__()
        self.unit_length, self.dim = coordinates.unit_length, coordinates.dim
        affine = coordinates.affine(projection)
        self.register_buffer("matrix", None if affine is None else _kernel(affine[0]))
        self.register_buffer("shift", None if affine is None else affine[1].detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        points = features if self.matrix is None else F.conv2d(features, self.matrix, self.shift)
        if not self.unit_length:
            return points
        # Lengths as a product: runtimes are slow at reductions over an axis in the middle.
        squares = F.conv2d(points.square(), points.new_ones(1, self.dim, 1, 1))
        return points * squares.clamp_min(_LEAST_SQUARE).rsqrt()


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
        self.num_products = self.num_components if self.num_classes >= _MANY else 1
        centre, weight, bias = product_form(mixture.means, mixture.variances, mixture.log_weights)
        self.register_buffer("centre", centre[:, None, None].clone())
        self.register_buffer("weight", _kernel(weight.flatten(0, 1)))
        self.register_buffer("bias", bias.flatten().clone())

    def forward(self, points: Tensor) -> Tensor:
        centred = points - self.centre
        # Joined one after the other, for the same reason.
        densities = self._densities(torch.cat([centred.square(), centred], dim=1))
        best = reduce(torch.maximum, densities)
        if self.winner or self.num_components == 1:
            return best
        return best + reduce(torch.add, [(each - best).exp() for each in densities]).log()

    def _densities(self, expanded: Tensor) -> list[Tensor]:
        """Of each component, log pi + log N (b c h w)."""
        weights, biases = self.weight.chunk(self.num_products), self.bias.chunk(self.num_products)
        products = [F.conv2d(expanded, *each) for each in zip(weights, biases)]
        return [each for product in products for each in product.split(self.num_classes, dim=1)]


def _kernel(matrix: Tensor) -> Tensor:
    """A matrix (out in) as the kernel of a 1x1 convolution."""
    return matrix.detach().float()[:, :, None, None].clone()
