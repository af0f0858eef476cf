"""Products of many points with a matrix, on the quicker of torch's two ways.

On a CPU torch hands products in float32 to MKL, and a 1x1 convolution, which is the same product, to oneDNN.
On a processor that is not Intel's the convolution was measured to take half the time, forward and backward.
On Intel's both take the same for points in rows; for points in columns MKL takes two thirds of the time.
"""

import platform
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows (n f) times matrix (o f) transposed, plus bias (o) -> (n o): `F.linear`, up to rounding."""
    if not _quicker_as_convolution(rows):
        return F.linear(rows, matrix, bias)
    maps = rows.contiguous()[None, None].permute(0, 3, 1, 2)  # (1 f 1 n): a channels_last view
    # Dilation means nothing to a kernel of one cell, and brings torch to oneDNN with a single thread, too.
    made = F.conv2d(maps, matrix[:, :, None, None], bias, dilation=2)
    return made.permute(0, 2, 3, 1).flatten(0, 2)


class Factor:
    """A matrix (o f) for products with one block of columns after the other, made ready for them once.

    No gradient follows. oneDNN would otherwise put the matrix in its own order for every block, which for the
    densities of 150 classes takes a sixth of the time.
    """

    def __init__(self, matrix: Tensor) -> None:
        self._in_columns = stays_in_columns(matrix)
        self._matrix = matrix if self._in_columns else torch.ops.mkldnn._reorder_linear_weight(matrix)

    def times(self, columns: Tensor, place: Tensor | None = None) -> Tensor:
        """The product with columns (f n): (o n), as columns or, from oneDNN, as rows that are turned.

        ``place`` (o n): memory that may be taken for it.
        """
        if self._in_columns:
            return torch.mm(self._matrix, columns, out=place)
        return torch.ops.mkldnn._linear_pointwise(columns.T, self._matrix, None, "none", [], "").T


def stays_in_columns(points: Tensor) -> bool:
    """Whether the product of a `Factor` with such points is in columns in memory, too.

    So it is for those who count operations or try shapes, too: they do not know oneDNN's own product.
    """
    return _made_by_intel() or is_in_torch_dispatch_mode() or not _quicker_as_convolution(points)


class RowProduct(nn.Linear):
    """A linear layer whose products are those of `product`."""

    def forward(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight, self.bias)


@cache
def _made_by_intel() -> bool:
    """Whether the processor is Intel's, for which MKL is written."""
    try:
        name = str(torch.cpu.get_capabilities()["cpu_name"])
    except (AttributeError, KeyError):  # an earlier torch
        name = platform.processor()
    return "intel" in name.lower()


def _quicker_as_convolution(rows: Tensor) -> bool:
    """Rows of float32 on a CPU for which torch has oneDNN. Compilers and exports choose for themselves."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    fitting = (
        rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.ndim == 2 and rows.numel() > 0
    )
    return fitting and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
