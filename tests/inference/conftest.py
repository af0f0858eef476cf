"""A segmenter whose every number can be worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.labels import LabelSpace
from gmmseg.models import Calibration, InferenceSettings, SegmenterOutput
from gmmseg.models.calibration_file import PIXELS, PROMISED, Threshold
from gmmseg.models.false_alarms import FalseAlarmCurve, FalseAlarms
from gmmseg.samples import Sample


class PointwiseSegmenter(nn.Module):
    """Evidence of class i = -10 (distance of the cell's mean colour to colour i)^2; no cell sees another."""

    label_names: tuple[str, ...] | None = ("red", "green", "blue")
    colours: tuple[tuple[int, int, int], ...] | None = ((200, 0, 0), (0, 200, 0), (0, 0, 200))
    calibration: Calibration | None = None
    inference = InferenceSettings()
    density = None
    align_corners = False
    num_classes = 3
    is_fitted = True

    def __init__(self, stride: int = 1, generative: bool = True) -> None:
        super().__init__()
        self.stride, self.generative = stride, generative
        self.offset = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(0.5)
        self.mixture = object() if generative else None
        self.sizes: list[tuple[int, int]] = []
        self.eval()

    @property
    def temperature(self) -> float:
        return 1.0 if self.calibration is None else self.calibration.temperature

    def forward(self, images: Tensor) -> SegmenterOutput:
        self.sizes.append((images.shape[-2], images.shape[-1]))
        points = F.avg_pool2d(images, self.stride) + self.offset
        difference = points[:, None] - torch.eye(3)[None, :, :, None, None]
        evidence = self.dropout(-10 * difference.square().sum(2))
        return SegmenterOutput(2 * evidence, points, evidence if self.generative else None)


class ListedSamples(list[Sample]):
    """Samples as a data set of the segmenter's three classes."""

    name, split, root = "listed", "val", None
    label_space = LabelSpace(("red", "green", "blue"), ((200, 0, 0), (0, 200, 0), (0, 0, 200)))

    def labels(self, index: int) -> Tensor:
        return self[index].labels


@pytest.fixture
def listed() -> type[ListedSamples]:
    return ListedSamples


@pytest.fixture
def calibration() -> Callable[..., Calibration]:
    """A Calibration with the threshold and temperature given."""

    def make(threshold: float = 3.0, temperature: float = 1.0) -> Calibration:
        return Calibration("w", {PIXELS: Threshold(threshold, 0.05)}, temperature, None, None, None)

    return make


@pytest.fixture
def promised() -> Callable[..., Calibration]:
    """A Calibration that promises 20 % per image, or per pixel where every pixel counts."""

    def make(threshold: float = 6.0, min_area: int = 1) -> Calibration:
        asked = FalseAlarms(0.2, "image" if min_area > 1 else "pixel", min_area)
        curve = FalseAlarmCurve(4, (0.0, 2.0, threshold), (0.9, 0.4, 0.2))
        found = Threshold(threshold, false_alarms=asked, images=4, by_class=(5.0, None, 8.0))
        return Calibration(
            "w", {PROMISED: found}, 1.0, None, None, None, false_alarms={"pixel": curve, "image": curve}
        )

    return make


@pytest.fixture
def make_segmenter() -> type[PointwiseSegmenter]:
    return PointwiseSegmenter


@pytest.fixture
def segmenter() -> PointwiseSegmenter:
    return PointwiseSegmenter()


@pytest.fixture
def make_video() -> Callable[..., Path]:
    """Writes ``frames`` grey noisy frames (32 48), each brighter than the last; returns the path."""
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'gmmseg[video]'")

    def make(path: Path, frames: int) -> Path:
        noise = np.random.default_rng(0).integers(0, 5, (32, 48, 1)) if frames > 5 else 0
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=5)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            for value in np.linspace(0, 200, frames):
                pixels = np.broadcast_to(value + noise, (32, 48, 3)).astype(np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())
        return path

    return make


@pytest.fixture
def video(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Five grey frames (32 48), each brighter than the last."""
    return make_video(tmp_path / "clip.mp4", frames=5)
