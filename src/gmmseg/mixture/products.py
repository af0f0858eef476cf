"""Products of many rows with a matrix, on the quicker of torch's two ways.

On a CPU torch hands a linear layer in float32 to MKL, and a 1x1 convolution, which is the same product, to
oneDNN. On a processor that is not Intel's the convolution was measured to take half the time, forward and
backward.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows (n f) times matrix (o f) transposed, plus bias (o) -> (n o): `F.linear`, up to rounding."""
    if not _quicker_as_convolution(rows):
        return F.linear(rows, matrix, bias)
    maps = rows.contiguous()[None, None].permute(0, 3, 1, 2)  # (1 f 1 n): a channels_last view
    # Dilation means nothing to a kernel of one cell, and brings torch to oneDNN with a single thread, too.
    made = F.conv2d(maps, matrix[:, :, None, None], bias, dilation=2)
    return made.permute(0, 2, 3, 1).flatten(0, 2)


class RowProduct(nn.Linear):
    """A linear layer whose products are those of `product`."""

    def forward(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight, self.bias)


def _quicker_as_convolution(rows: Tensor) -> bool:
    """Rows of float32 on a CPU for which torch has oneDNN. Compilers and exports choose for themselves."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    fitting = rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.ndim == 2 and len(rows) > 0
    return fitting and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
