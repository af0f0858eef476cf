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
    return F.conv2d(maps, matrix[:, :, None, None], bias).permute(0, 2, 3, 1).flatten(0, 2)


class RowProduct(nn.Linear):
    """A linear layer whose products are those of `product`."""

    def forward(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight, self.bias)


def _quicker_as_convolution(rows: Tensor) -> bool:
    """Rows of float32 on a CPU for which torch has oneDNN. Compilers choose for themselves."""
    if torch.compiler.is_compiling() or rows.device.type != "cpu" or rows.ndim != 2:
        return False
    return torch.backends.mkldnn.is_available() and rows.dtype == torch.float32 and len(rows) > 0
