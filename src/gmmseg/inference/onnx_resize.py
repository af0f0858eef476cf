"""The antialiased bicubic resize of position embeddings (DINOv2) in ONNX: two products with small matrices.

torch's exporter has no rule for it. ONNX's own Resize could say it, but OpenVINO leaves the antialiasing out;
products mean the same everywhere.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.onnx._internal.torchscript_exporter.jit_utils import GraphContext

_REACH = 2.0
"""Cells on either side, of the coarser grid, that a bicubic kernel sees."""
_FLOAT = 1  # ONNX's number for float32


def antialiased_resize(
    g: "GraphContext",
    maps: torch.Value,
    size: torch.Value,
    align_corners: torch.Value,
    *scales: torch.Value,
) -> torch.Value:
    """`F.interpolate(maps, size, mode="bicubic", antialias=True)` of maps (b f h w): an exporter's rule."""
    wanted = [_scalar(g, side) for side in size.node().inputs()]
    shape = g.op("Shape", maps)
    present = [g.op("Gather", shape, _constant(g, torch.tensor(axis))) for axis in (2, 3)]
    above, beside = (_weights(g, *sides) for sides in zip(present, wanted))
    return g.op("MatMul", g.op("MatMul", above, maps), g.op("Transpose", beside, perm_i=[1, 0]))


def _weights(g: "GraphContext", present: torch.Value, wanted: torch.Value) -> torch.Value:
    """Rows (wanted present) whose product with the cells of one side gives the cells of the resized side."""
    step = g.op("Div", g.op("Cast", present, to_i=_FLOAT), g.op("Cast", wanted, to_i=_FLOAT))
    centres = g.op("Mul", _middles(g, wanted), step)
    centres = g.op("Reshape", centres, _constant(g, torch.tensor([-1, 1])))
    # Where cells become fewer, the kernel widens to see all of them.
    offsets = g.op("Abs", g.op("Sub", _middles(g, present), centres))
    offsets = g.op("Div", offsets, g.op("Max", step, _number(g, 1.0)))
    kernel = _kernel(g, g.op("Min", offsets, _number(g, _REACH)))
    return g.op("Div", kernel, g.op("ReduceSum", kernel, _constant(g, torch.tensor([1])), keepdims_i=1))


def _middles(g: "GraphContext", count: torch.Value) -> torch.Value:
    """0.5, 1.5, ... for so many cells."""
    first, step = _constant(g, torch.tensor(0)), _constant(g, torch.tensor(1))
    return g.op("Add", g.op("Cast", g.op("Range", first, count, step), to_i=_FLOAT), _number(g, 0.5))


def _kernel(g: "GraphContext", offsets: torch.Value) -> torch.Value:
    """Keys' cubic with a = -0.5 at offsets from 0 to 2."""
    near = _polynomial(g, offsets, (1.5, -2.5, 0.0, 1.0))
    far = _polynomial(g, offsets, (-0.5, 2.5, -4.0, 2.0))
    return g.op("Where", g.op("Less", offsets, _number(g, 1.0)), near, far)


def _polynomial(g: "GraphContext", values: torch.Value, coefficients: tuple[float, ...]) -> torch.Value:
    """Coefficients from the highest power on, by Horner's rule."""
    first, *others = coefficients
    result = _number(g, first)
    for each in others:
        result = g.op("Add", g.op("Mul", result, values), _number(g, each))
    return result


def _scalar(g: "GraphContext", value: torch.Value) -> torch.Value:
    return g.op("Reshape", value, _constant(g, torch.zeros(0, dtype=torch.int64)))


def _number(g: "GraphContext", value: float) -> torch.Value:
    return _constant(g, torch.tensor(value, dtype=torch.float32))


def _constant(g: "GraphContext", value: torch.Tensor) -> torch.Value:
    return g.op("Constant", value_t=value)
