"""Commands about other runtimes: export a model."""

from pathlib import Path
from typing import Annotated

import typer

from gmmseg.cli_options import Model
from gmmseg.terminal import note, say


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="The file: .onnx, .xml (openvino) or .pt2 (torch, aoti).")],
    format: Annotated[str, typer.Option(help="onnx, openvino, torch or aoti.")] = "onnx",
    posterior: Annotated[
        bool, typer.Option(help="Also output the posterior of every class, which is large.")
    ] = False,
) -> None:
    """Write a model as one graph for another runtime: images in; labels, confidence, anomaly, unknown out.

    Padding, normalisation and upsampling are inside, for images of any size. The calibrated threshold is the
    default of an input. The file is compared with the model before it is called done.
    """
    from gmmseg import run

    report = run.export_model(model, out, format=format, posterior=posterior)
    say(
        f"{out}: {report.bytes / 1e6:.1f} MB; {report.labels_identical:.3%} of the labels are the model's, "
        f"scores differ by at most {report.largest_difference:.2g}"
    )
    note(f"next: gmmseg predict IMAGE --model {out} --out DIR")
