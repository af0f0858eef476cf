"""The command `predict`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gmmseg.cli_monitor import object_files
from gmmseg.cli_options import (
    ModelOption,
    ObjectAreaOption,
    ObjectsOption,
    PixelsOption,
    ShortSideOption,
    StrideOption,
    WindowOption,
)
from gmmseg.printable import printable
from gmmseg.terminal import Bar, note, say

if TYPE_CHECKING:
    from gmmseg.inference import Meaning, PredictSummary

ScoreOption = Annotated[
    str | None,
    typer.Option(help="Anomaly score to show. Default: the calibrated one, which alone has a threshold."),
]
ThresholdOption = Annotated[
    float | None, typer.Option(help="Unknown above this score. Default: the calibrated threshold.")
]
DeviceOption = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. Default: a GPU where there is one.")
]
BatchOption = Annotated[
    int, typer.Option(min=1, help="Neighbouring images of one size that go through the network together.")
]
EveryOption = Annotated[int, typer.Option(min=1, help="Of videos, predict one frame in this many.")]


def predict(
    inputs: Annotated[list[Path], typer.Argument(help="Images, folders of images, or videos.")],
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("predictions"),
    raw: Annotated[
        bool, typer.Option(help="Also write labels, posterior, anomaly and p-values as .npz.")
    ] = False,
    objects: ObjectsOption = False,
    min_area: ObjectAreaOption = None,
    score: ScoreOption = None,
    threshold: ThresholdOption = None,
    window: WindowOption = None,
    stride: StrideOption = None,
    short_side: ShortSideOption = None,
    max_pixels: PixelsOption = None,
    device: DeviceOption = None,
    batch_size: BatchOption = 1,
    every: EveryOption = 1,
) -> None:
    """Predict images, folders and videos: label maps, overlays, heat maps, unknown masks, and a summary.

    Files keep their names: photo.jpg becomes photo.png in each folder of pictures, a video becomes videos.
    """
    from gmmseg import run
    from gmmseg.inference import Work, predict_files
    from gmmseg.models import InferenceSettings

    _refuse_faults(inputs, out, threshold)
    state = run.join_processes()
    place = state.device if device is None else run.device_named(device)
    view = InferenceSettings(short_side, window, stride)
    predictor = run.open_predictor(model, view, max_pixels=max_pixels, device=place, score=score)
    collected = object_files(predictor, model, threshold=threshold, wanted=objects, min_area=min_area)
    _tell_threshold(model, predictor.meaning.with_threshold(threshold), state.is_main_process)
    with Bar("predicting") as bar:
        work = Work(threshold, batch_size, every, raw)
        summary = predict_files(predictor, inputs, out, work, objects=collected, progress=bar)
    _tell_summary(summary, state.is_main_process)


def _refuse_faults(inputs: list[Path], out: Path, threshold: float | None) -> None:
    """What can be refused before the model is loaded, which may take a while."""
    from gmmseg.inference.inputs import check_inputs

    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"--threshold is a finite number, got {threshold}")
    check_inputs(inputs, out)


def _tell_threshold(model: str, meaning: "Meaning", is_main_process: bool) -> None:
    """Say what unknown masks are made with."""
    if not is_main_process:
        return
    if meaning.given_threshold is not None:
        say(f"unknown: above {meaning.threshold:.4g} ({meaning.score}), a threshold given by you")
    elif meaning.calibration is not None and meaning.threshold is not None:
        promise = meaning.calibration.promise_text()
        say(f"unknown: above {meaning.threshold:.4g} ({meaning.score}); this threshold {promise}")
    else:
        from gmmseg.inference.exporting import is_exported  # late: it brings torch

        cure = f"take the default score after gmmseg calibrate {model}"
        if is_exported(Path(model)):
            cure = "calibrate the weights it was made from and export again"
        note(
            f"{model} has no threshold for {meaning.score}, so no unknown masks; {cure}, or give --threshold"
        )


def _tell_summary(summary: "PredictSummary", is_main_process: bool) -> None:
    """Say what was predicted and what was not; files that failed end the command with code 1."""
    from gmmseg import distributed

    if is_main_process:
        say(f"{summary.done} done, in {summary.out_dir}")
        for name, reason in summary.failed:
            cause = reason.split(f"{name}: ", 1)[-1]  # most begin with the path, which ends with the name
            say(f"not done: {printable(name)}: {printable(cause)}", err=True)
    distributed.wait_for_all()  # a launcher ends all processes when the first one reports a failure
    if summary.failed:
        raise typer.Exit(1)
