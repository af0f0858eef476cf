"""From a segmenter to a file that other runtimes read, compared with the segmenter before it is done."""

import copy
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gmmseg.atomic import LEFTOVER_PREFIX, naming, refuse_odd_destination
from gmmseg.inference.aoti_format import AotiModel, write_aoti
from gmmseg.inference.export_metadata import ExportedFileError, ExportMetadata, metadata_of
from gmmseg.inference.onnx_format import OnnxModel, write_onnx
from gmmseg.inference.openvino_format import OpenVinoModel, write_openvino
from gmmseg.inference.predictor import UNFITTED
from gmmseg.inference.torch_format import TorchModel, write_torch
from gmmseg.inference.windows import (
    REPEATED,
    SMALLEST_SIDE,
    anomaly_reading,
    in_evaluation_mode,
    next_multiple,
    whole,
)
from gmmseg.models import Segmenter
from gmmseg.models.conversion import TappedFeatures
from gmmseg.models.masks import MaskSegmenter

LEAST_AGREEMENT = 0.999
"""Share of labels that must be the model's own: rounding may decide between two classes in a few pixels."""
SCORE_TOLERANCE = 1e-3
"""How far scores may be from the model's, as a share of how much they vary."""


class ExportError(ValueError):
    """A network that cannot be exported, or whose file does not say what the network says."""


class ExportedModel(Protocol):
    """A file of any format, opened: images (b 3 h w) and a threshold in, outputs by name out."""

    metadata: ExportMetadata

    def __call__(self, images: Tensor, threshold: float | None = None) -> dict[str, Tensor]: ...


class Opener(Protocol):
    """Opens a file; ``threads`` of the runtime, None: as many as it likes."""

    def __call__(self, path: Path, *, threads: int | None = None) -> ExportedModel: ...


@dataclass(frozen=True)
class Format:
    """How a format's files end, and how they are written and opened."""

    suffix: str
    write: Callable[[Segmenter, Tensor, ExportMetadata, Path], None]
    open: Opener


FORMATS = {
    "onnx": Format(".onnx", write_onnx, OnnxModel),
    "openvino": Format(".xml", write_openvino, OpenVinoModel),
    "torch": Format(".pt2", write_torch, TorchModel),
    "aoti": Format(".pt2", write_aoti, AotiModel),
}


SAME_ROUTE = {"onnx": ("openvino",), "torch": ("aoti",)}
"""Formats that are made of another one's graph: where that cannot be made, they cannot either."""


@dataclass(frozen=True)
class ExportReport:
    """What came of an export: share of labels that are the model's, largest difference of an anomaly score,
    bytes on disk, seconds it took."""

    labels_identical: float
    largest_difference: float
    bytes: int
    seconds: float


def export(
    segmenter: Segmenter, path: str | Path, *, format: str = "onnx", posterior: bool = False
) -> ExportReport:
    """Write a segmenter, with its calibration, as one file (for openvino two) of the named format.

    The file is opened and compared with the segmenter on random images of several sizes before it takes its
    place: of one that does not agree ExportError says where, and what was at ``path`` stays. What cannot be
    exported is refused before the work begins.
    """
    path = Path(path)
    kind = format_for(format, path)
    refuse_unsupported(segmenter, format)
    started = time.perf_counter()
    model = _on_cpu(segmenter)
    smallest = smallest_side(model)
    metadata = metadata_of(model, posterior=posterior, smallest_side=smallest)
    with naming(path), _draft(path) as draft, _refusing(format):
        kind.write(model, example_images(model, smallest), metadata, draft)
        seconds = time.perf_counter() - started
        identical, difference = compare(model, kind.open(draft, threads=1), smallest)
    return ExportReport(identical, difference, sum(part.stat().st_size for part in parts(path)), seconds)


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Where to write an exported model that is to be at ``path`` once the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=LEFTOVER_PREFIX) as folder:
        draft = Path(folder) / path.name
        yield draft
        for part in reversed(parts(draft)):  # weights first: a graph is never seen beside those of another
            os.replace(part, path.with_name(part.name))


@contextmanager
def _refusing(format: str) -> Iterator[None]:
    """What torch or a converter cannot make a graph of, or a runtime cannot run, is refused with its reason
    and a way out."""
    try:
        yield
    except (OSError, ImportError, ExportError):
        raise
    except Exception as error:  # exporters, compilers and runtimes fail in many ways
        no_better = (format, *SAME_ROUTE.get(format, ()))
        others = ", ".join(name for name in FORMATS if name not in no_better)
        raise ExportError(
            f"torch {torch.__version__} cannot write this network in format {format} "
            f"({first_line(error)}); choose another format ({others}), or another network"
        ) from error


def first_line(error: Exception) -> str:
    """What an exporter's or a runtime's error begins with: stacks and graphs follow."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def format_for(name: str, path: Path) -> Format:
    """The format of this name; ValueError or OSError unless one of its files can be written to ``path``."""
    if name not in FORMATS:
        raise ValueError(f"unknown format {name!r}: choose {', '.join(FORMATS)}")
    if path.suffix != FORMATS[name].suffix:
        raise ValueError(f"{path}: files of format {name} end in {FORMATS[name].suffix}")
    for part in parts(path):
        refuse_odd_destination(part)
        if part != path and part.exists() and not path.exists():
            raise ValueError(
                f"{part}: is there already, and no {path.name} that it belongs to; choose another name"
            )
    return FORMATS[name]


def parts(path: Path) -> list[Path]:
    """The files of an exported model: one, or for OpenVINO two."""
    return [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]


def refuse_unsupported(segmenter: Segmenter, format: str = "onnx") -> None:
    """ExportError for what a format cannot hold, without trying."""
    if not segmenter.is_fitted:
        raise ExportError(UNFITTED)
    other = next((each.dtype for each in segmenter.parameters() if each.dtype != torch.float32), None)
    if other is not None:
        raise ExportError(f"the weights are of {other}, and graphs are of float32: export model.float()")
    if isinstance(segmenter.features, TappedFeatures):
        kind = type(segmenter.features.network).__name__
        raise ExportError(
            f"{kind} was taken apart at a layer by its name (convert with a classifier): the rest of it is "
            "left by an exception, which no graph can hold; export networks of the zoo, of smp, or "
            "SegFormer, UPerNet and Mask2Former of transformers"
        )
    if isinstance(segmenter, MaskSegmenter) and format in ("torch", "aoti"):
        raise ExportError(
            "Mask2Former attends to several scales at once, and torch.export keeps the sizes that they had "
            f"in its example, so that format {format} would take images of one size: choose onnx or openvino"
        )


def _on_cpu(segmenter: Segmenter) -> Segmenter:
    """The segmenter in evaluation mode, or a copy where it is on another device."""
    device = next(segmenter.parameters()).device
    return in_evaluation_mode(segmenter if device.type == "cpu" else copy.deepcopy(segmenter).cpu())


def smallest_side(segmenter: Segmenter) -> int:
    """The least side of an image for which a recorded graph is true; 0 if for all.

    A Swin transformer makes its windows smaller where the image has too few cells for one of them. A graph
    holds one size of window. Other networks cannot see small images at all.
    """
    configurations = (getattr(module, "config", None) for module in segmenter.modules())
    windows = [getattr(each, "window_size", 0) for each in configurations]
    largest = max((each for each in windows if isinstance(each, int)), default=0)
    if largest:
        return SMALLEST_SIDE * (largest + 1)
    seen = next((side for side in _SIDES if _sees(segmenter, side)), None)
    if seen is None:
        raise ExportError(f"the network itself fails at images of {_SIDES[0]} to {_SIDES[-1]} pixels a side")
    return 0 if seen == _SIDES[0] else seen


_SIDES = (SMALLEST_SIDE, 64, 128, 192, 256, 384, 512)


@torch.no_grad()
def _sees(segmenter: Segmenter, side: int) -> bool:
    """Whether a network takes images of this side."""
    try:
        whole(segmenter, torch.rand(1, 3, side, side), (anomaly_reading(segmenter),))
    except (ValueError, RuntimeError):
        return False
    return True


def example_images(segmenter: Segmenter, smallest: int) -> Tensor:
    """Two images that need padding, with sides that no part of a network finds special."""
    multiple = next_multiple(REPEATED, segmenter.stride)
    least = next_multiple(max(smallest, multiple), multiple)
    return torch.rand(2, 3, least + multiple - 3, least + 2 * multiple - 5)


_SMALL_SIDES = (
    (SMALLEST_SIDE, SMALLEST_SIDE),
    (SMALLEST_SIDE // 2, 3 * SMALLEST_SIDE + 1),
    (3 * SMALLEST_SIDE, SMALLEST_SIDE // 2),
)


@torch.no_grad()
def compare(segmenter: Segmenter, exported: ExportedModel, smallest: int) -> tuple[float, float]:
    """Share of labels that are the segmenter's own, and the largest difference of an anomaly score.

    On images that the stride divides, that it does not, a batch of two, and (where allowed) a few of the
    smallest, low and narrow.
    """
    stride, least = segmenter.stride, max(smallest, 2 * REPEATED)
    sizes = [
        (1, next_multiple(least, stride), next_multiple(least + 3 * stride, stride)),
        (2, least + 2 * stride + 1, least + 5),
        # Several of each, so that a pixel in which rounding decides is less than the labels that may differ.
        *([] if smallest else [(4, *sides) for sides in _SMALL_SIDES]),
    ]
    generator = torch.Generator().manual_seed(0)
    shares, differences = [], []
    for batch, height, width in sizes:
        images = torch.rand(batch, 3, height, width, generator=generator)
        identical, difference, spread = _differences(segmenter, exported, images)
        if identical < LEAST_AGREEMENT or not difference <= SCORE_TOLERANCE * max(spread, 1.0):
            raise ExportError(
                f"the exported file says something else than the model: on {batch} x {height} x {width} "
                f"pixels {identical:.1%} of the labels are the same, and scores differ by {difference:.3g}; "
                "this network cannot be exported in this format"
            )
        shares.append(identical)
        differences.append(difference)
    return min(shares), max(differences)


def _differences(segmenter: Segmenter, exported: ExportedModel, images: Tensor) -> tuple[float, float, float]:
    """Share of equal labels, largest difference of a score, and the standard deviation of the scores."""
    maps = whole(segmenter, images, (anomaly_reading(segmenter),))
    found = exported(images)
    same = found["labels"] == maps.posterior.argmax(1).to(torch.uint8)
    difference = (found["anomaly"] - maps.anomaly).abs().max()
    return float(same.double().mean()), float(difference), float(maps.anomaly.double().std())


def open_exported(path: str | Path, *, threads: int | None = None) -> ExportedModel:
    """An exported file, opened by the runtime of its format, which its ending and content tell."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    kinds = {kind.suffix: name for name, kind in FORMATS.items() if name != "aoti"}
    if path.suffix not in kinds:
        raise ExportedFileError(f"{path}: exported models end in {', '.join(kinds)}")
    name = "aoti" if path.suffix == ".pt2" and _is_compiled(path) else kinds[path.suffix]
    return FORMATS[name].open(path, threads=threads)


def _is_compiled(path: Path) -> bool:
    """Whether a .pt2 holds a library of AOTInductor."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/aotinductor/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError) as error:
        raise ExportedFileError(f"{path}: not a .pt2 archive ({error}); export it again") from error


def is_exported(path: Path) -> bool:
    """Whether a name means an exported file, and not a folder of weights."""
    return path.suffix in {kind.suffix for kind in FORMATS.values()} and not path.is_dir()
