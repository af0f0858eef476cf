"""A segmenter whose every number can be worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.models import SegmenterOutput


class PointwiseSegmenter(nn.Module):
    """Evidence of class i = -10 (distance of the cell's mean colour to colour i)^2; no cell sees another."""

    label_names: tuple[str, ...] | None = ("red", "green", "blue")
    colours: tuple[tuple[int, int, int], ...] | None = ((200, 0, 0), (0, 200, 0), (0, 0, 200))
    threshold: float | None = None
    temperature = 1.0
    num_classes = 3
    is_fitted = True

    def __init__(self, stride: int = 1, generative: bool = True) -> None:
        super().__init__()
        self.stride, self.generative = stride, generative
        self.offset = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(0.5)
        self.mixture = object() if generative else None
        self.sizes: list[tuple[int, int]] = []

    def forward(self, images: Tensor) -> SegmenterOutput:
        self.sizes.append((images.shape[-2], images.shape[-1]))
        points = F.avg_pool2d(images, self.stride) + self.offset
        difference = points[:, None] - torch.eye(3)[None, :, :, None, None]
        evidence = self.dropout(-10 * difference.square().sum(2))
        return SegmenterOutput(2 * evidence, points, evidence if self.generative else None)


@pytest.fixture
def make_segmenter() -> type[PointwiseSegmenter]:
    return PointwiseSegmenter


@pytest.fixture
def segmenter() -> PointwiseSegmenter:
    return PointwiseSegmenter()


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Five grey frames (32 48), each brighter than the last."""
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'gmmseg[video]'")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for value in (0, 50, 100, 150, 200):
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), value, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
