"""Commands about other runtimes: export a model, and measure its speed in each of them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gmmseg.cli_options import Model
from gmmseg.cli_shared import next_prediction, open_set
from gmmseg.json_tree import JSON
from gmmseg.terminal import note, say

COMPILING = "compiling for this machine, which takes a minute or two"
EIGHT_BITS = (
    "threshold and promise are those of the model, whose scores eight bits only approximate: look at the "
    "unknown masks before you trust them"
)


def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="The file: .onnx, .xml (openvino) or .pt2 (torch, aoti).")],
    format: Annotated[str, typer.Option(help="onnx, openvino, torch or aoti.")] = "onnx",
    posterior: Annotated[
        bool, typer.Option(help="Also output the posterior of every class, which is large.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Eight-bit ONNX, its ranges found on the images of --data.")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Validation images for --int8, NAME:ROOT[:SPLIT].")
    ] = None,
) -> None:
    """Write a model as one graph for another runtime: images in; labels, confidence, anomaly, unknown out.

    Padding, normalisation and upsampling are inside, for images of any size. The calibrated threshold is the
    default of an input. The file is compared with the model before it is called done.
    """
    from gmmseg import run

    if int8 != (data is not None):
        raise ValueError("--int8 needs --data, images to find its ranges on, and --data needs --int8")
    if int8 and format != "onnx":
        raise ValueError(f"--int8 writes ONNX files, not {format}")
    if format == "aoti":
        note(COMPILING)
    if data is not None:
        exact = "before rounding to eight bits, "
        report = run.export_int8(model, open_set(data), out, posterior=posterior)
    else:
        exact, report = "", run.export_model(model, out, format=format, posterior=posterior)
    say(
        f"{out}: {report.bytes / 1e6:.1f} MB; {exact}"
        f"{report.labels_identical:.3%} of the labels are the model's, "
        f"scores differ by at most {report.largest_difference:.2g}"
    )
    if int8:
        note(EIGHT_BITS)
    note(next_prediction(out))


def bench(
    models: Annotated[
        list[str],
        typer.Argument(help="Run folders, folders of weights, or zoo names (random weights)."),
    ],
    runtimes: Annotated[
        str, typer.Option(help="Comma separated: eager, compiled, onnx, openvino, torch, aoti.")
    ] = "eager,compiled,onnx,openvino",
    size: Annotated[int, typer.Option(min=32, help="Height and width of the image.")] = 512,
    seconds: Annotated[float, typer.Option(min=0, help="Least time for the passes of each model.")] = 30.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each runtime.")] = 1,
    classes: Annotated[int, typer.Option(min=1, max=255, help="Classes of networks of the zoo.")] = 19,
    out: Annotated[Path, typer.Option(help="Where to write the results, as JSON.")] = Path("bench.json"),
) -> None:
    """Measure models beside their softmax twins; prints a table and writes JSON.

    Heads and runtimes take turns on the same image, so that other work on the machine falls on all alike.
    """
    from gmmseg import run
    from gmmseg.atomic import refuse_odd_destination, write_bytes

    refuse_odd_destination(out)  # before the measurement, which takes long
    named = [name.strip() for name in runtimes.split(",") if name.strip()]
    results = run.bench(models, run.Race(named, size, seconds, threads, classes))
    say(speed_table(results["rows"]))
    write_bytes(out, (json.dumps(results, indent=1) + "\n").encode())
    say(f"results in {out}")


def speed_table(rows: list[JSON]) -> str:
    """Rows of `run.bench` as a table in Markdown; ratios are to the twin, by the clock and the processor."""
    head = (
        "| model | classes | head | runtime | images/s | p50 ms | p95 ms | peak MB | ratio | by processor |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        peak = "" if row["peak_megabytes"] is None else f"{row['peak_megabytes']:.0f}"
        cells = [
            row["model"],
            str(row["classes"]),
            row["head"],
            row["runtime"],
            f"{row['images_per_second']:.2f}",
        ]
        cells += [f"{row['p50_ms']:.1f}", f"{row['p95_ms']:.1f}", peak]
        cells += ["" if row[key] is None else f"{row[key]:.3f}" for key in ("ratio", "processor_ratio")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
