"""The command `adapt`: from a trained softmax model to a generative one, in minutes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gmmseg.cli_options import CalibrateOption
from gmmseg.cli_shared import judged_sets, next_prediction, stoppable, validation_of
from gmmseg.terminal import Bar, note, say

if TYPE_CHECKING:
    from gmmseg.run import Adaptation
    from gmmseg.samples import FingerprintedDataset

WAYS = ("decoder", "head")


def adapt(
    model: Annotated[
        str,
        typer.Argument(
            help="Trained softmax model: run folder, folder of weights (ours, or of transformers), "
            "hf:owner/name, torchvision:deeplabv3_resnet50."
        ),
    ],
    data: Annotated[str, typer.Option("--data", "-d", help="Labelled training set, NAME:ROOT[:SPLIT].")],
    out: Annotated[Path, typer.Option(help="Folder for the weights.")],
    minutes: Annotated[float, typer.Option(help="Time for all of it.")] = 5.0,
    train: Annotated[
        str, typer.Option(help="decoder: all but the backbone. head: the head alone, features stay.")
    ] = "decoder",
    calibrate: CalibrateOption = None,
) -> None:
    """Make a trained softmax model generative in minutes; writes the weights, calibrated.

    What fits into the time is measured first and said. The backbone stays as it is. Labels are compared with
    those of the softmax model on validation images.
    """
    started = time.monotonic()
    from gmmseg import distributed, run

    if train not in WAYS:
        raise ValueError(f"--train {train}: choose {' or '.join(WAYS)}")
    clock = run.Clock(60 * minutes, started=started)
    settings = run.AdaptSettings(train)  # type: ignore[arg-type]  # one of the ways
    dataset = judged_sets(model, [data], "train")[0]
    validation = judged_sets(model, [calibrate])[0] if calibrate else _validation(model, data)
    with Bar("adapting") as bar, stoppable():
        found = run.adapt(model, dataset, out, clock, settings, validation=validation, say=note, progress=bar)
    if distributed.rank() == 0:
        _tell(found, model, out, clock.passed)


def _validation(model: str, data: str) -> "FingerprintedDataset | None":
    """The validation set of the model's run, or the split val of the training set; None without either."""
    of_run = validation_of(model)
    if of_run is not None:
        return of_run
    name, _, rest = data.partition(":")
    root = rest.rpartition(":")[0] if ":" in rest else rest
    try:
        return judged_sets(model, [f"{name}:{root}:val"])[0]
    except (OSError, ValueError):
        note(f"{data} has no split val: labels are not compared, and nothing is calibrated; see --calibrate")
        return None


def _tell(found: "Adaptation", model: str, out: Path, seconds: float) -> None:
    """Say what came of it, and what to do next."""
    say(f"weights in {out}, after {seconds / 60:.1f} minutes")
    if found.miou_before is None or found.miou_after is None:
        say(f"next: gmmseg calibrate {out} --data NAME:ROOT:val, which finds the threshold of the unknown")
        return
    before, after = 100 * found.miou_before, 100 * found.miou_after
    seen = f"{found.plan.validation_images} validation images"
    say(f"mIoU on {seen}: {after:.1f}, that of the softmax model {before:.1f}; calibrated on the same")
    if not found.keeps_labels:
        note(
            f"labels are {before - after:.1f} points worse than those of {model}: give more --minutes, or "
            "gmmseg fit, which keeps them as they are"
        )
    say(next_prediction(out))
