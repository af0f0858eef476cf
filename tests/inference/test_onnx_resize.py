"""The antialiased resize as ONNX operators says what torch says, in every runtime."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gmmseg.inference.onnx_format import OPSET
from gmmseg.inference.onnx_resize import antialiased_resize

pytest.importorskip("onnx")
SIZES = [(5, 5), (7, 3), (1, 1), (16, 16), (37, 12), (12, 37), (64, 50)]


class Resized(nn.Module):
    """A map of its own, as position embeddings are, at the size of the images it is given."""

    def __init__(self) -> None:
        super().__init__()
        maps = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        self.register_buffer("maps", maps)

    def forward(self, images):
        return F.interpolate(self.maps, size=images.shape[-2:], mode="bicubic", antialias=True)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("resize") / "graph.onnx"
    torch.onnx.register_custom_op_symbolic("aten::_upsample_bicubic2d_aa", antialiased_resize, OPSET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Resized(),
            (torch.zeros(1, 1, 9, 8),),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=["images"],
            dynamic_axes={"images": {2: "h", 3: "w"}},
        )
    return path


@pytest.mark.parametrize("size", SIZES)
def test_fewer_and_more_cells_are_those_of_torch(graph, size):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    images = torch.zeros(1, 1, *size)
    (found,) = session.run(None, {"images": images.numpy()})
    assert np.allclose(found, Resized()(images).numpy(), atol=2e-6)


def test_openvino_says_the_same(graph):
    openvino = pytest.importorskip("openvino")
    model = openvino.Core().compile_model(str(graph), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for size in SIZES:
        images = torch.zeros(1, 1, *size)
        assert np.allclose(model({"images": images.numpy()})[0], Resized()(images).numpy(), atol=2e-6)
