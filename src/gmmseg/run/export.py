"""Export: a trained model in, a file for another runtime out; and such a file opened for prediction."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from gmmseg import inference
from gmmseg.images import MAX_PIXELS, to_unit_range
from gmmseg.inference import ExportedPredictor, ExportReport, Predictor, open_exported
from gmmseg.inference.exporting import format_for, is_exported
from gmmseg.inference.file_prediction import FilePredictor
from gmmseg.inference.int8 import MOST_IMAGES, quantise
from gmmseg.models import InferenceSettings
from gmmseg.run.runs import open_model
from gmmseg.samples import SegmentationDataset


def export_model(
    source: str | Path, out: Path, *, format: str = "onnx", posterior: bool = False
) -> ExportReport:
    """Write the model of a run folder, a folder of weights or the hub to ``out``, with its calibration."""
    return inference.export(open_model(source), out, format=format, posterior=posterior)


def export_int8(
    source: str | Path, dataset: SegmentationDataset, out: Path, *, posterior: bool = False
) -> ExportReport:
    """`export_model` to ONNX in eight bits; ``dataset``: images like those it will see, not trained on.

    The report is of the file in single precision, which it is made from, but for the bytes.
    """
    format_for("onnx", out)
    with tempfile.TemporaryDirectory() as scratch:
        exact = Path(scratch) / "exact.onnx"
        report = export_model(source, exact, posterior=posterior)
        count = min(len(dataset), MOST_IMAGES)
        quantise(exact, (to_unit_range(dataset[index].image) for index in range(count)), out)
    return replace(report, bytes=out.stat().st_size)


def open_predictor(
    source: str | Path,
    view: InferenceSettings,
    *,
    max_pixels: int | None = None,
    device: torch.device | str | None = None,
    score: str | None = None,
) -> FilePredictor:
    """What predicts files with a model: of a run folder, folder of weights or the hub, or an exported file.

    ``view`` overrides how the model looks at images, ``score`` the anomaly score it shows; an exported file
    looks at them in one way and has one score.
    """
    if not is_exported(Path(source)):
        return Predictor(
            open_model(source),
            short_side=view.short_side,
            window=view.window,
            stride=view.stride,
            max_pixels=max_pixels or MAX_PIXELS,
            device=device,
            score=score,
        )
    if score is not None:
        raise ValueError(f"{source} is an exported graph, which has one anomaly score: leave out --score")
    if view != InferenceSettings():
        raise ValueError(
            f"{source} is an exported graph, which sees an image in one way: leave out --window, --stride "
            "and --short-side, or give the weights it was made from"
        )
    return ExportedPredictor(open_exported(Path(source)), max_pixels=max_pixels or MAX_PIXELS)
