"""The command `monitor`: has the world changed? And the objects of `predict`."""

import json
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO

import typer

from gmmseg.cli_options import Model
from gmmseg.terminal import note, say

if TYPE_CHECKING:
    from gmmseg.inference.file_prediction import FilePredictor
    from gmmseg.inference.object_files import ObjectFiles
    from gmmseg.inference.watching import Monitor, Observation
    from gmmseg.run import BrokenImage

ALARM_CODE = 3
"""How the command ends on an alarm, when asked to."""


def monitor(
    model: Model,
    source: Annotated[
        str,
        typer.Option("--input", help="Folder of images, image or video; lines: paths on standard input."),
    ],
    false_alarms: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            max=0.5,
            help="Probability of ever raising a false alarm, however long the stream. Default: 0.01.",
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="File in which to keep what was seen; goes on from it if it exists.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help=f"End with code {ALARM_CODE} at the first alarm.")
    ] = False,
) -> None:
    """Watch images for a change against the calibration images; prints one line of JSON for each.

    "objects": something in the images stands out as nothing did before. "conditions": the images as a whole
    are different (night, rain, another camera). Images that cannot be read are named and passed over.
    """
    from gmmseg import run

    run.join_processes()
    predictor, watching = run.open_monitor(model, false_alarms=false_alarms, state_file=state)
    note(_promise(watching))
    seen = run.watch(predictor, watching, run.stream(source, _standard_input()), state_file=state)
    watched = _print_all(seen, watching, to_first_alarm=exit_code)
    _tell(watching, watched.broken)
    if exit_code and watching.alarms:
        raise typer.Exit(ALARM_CODE)
    if watched.interrupted:
        raise KeyboardInterrupt


def _promise(watching: "Monitor") -> str:
    limit = f"{watching.false_alarms:g}"
    return f"images like those of calibration raise an alarm with a probability of at most {limit}, ever"


def _standard_input() -> TextIO:
    """Lines in which any bytes are a path, as the system has them: one odd name does not end the watch."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


class _Watched(NamedTuple):
    """How many images could not be read, and whether a signal ended the watch."""

    broken: int
    interrupted: bool = False


def _print_all(
    seen: "Generator[Observation | BrokenImage, None, None]", watching: "Monitor", *, to_first_alarm: bool
) -> _Watched:
    """One line for each image, to the end, to the first alarm or until somebody stops it."""
    from gmmseg import run

    broken = 0
    with _termination_as_interrupt(), suppress(KeyboardInterrupt), closing(seen):
        while not (to_first_alarm and watching.alarms):
            each = next(seen, None)
            if each is None:
                break
            broken += isinstance(each, run.BrokenImage)
            say(json.dumps(asdict(each)))
        return _Watched(broken)
    return _Watched(broken, interrupted=True)


def _tell(watching: "Monitor", broken: int) -> None:
    """The last line, and what it means for people."""
    summary = {
        "images": watching.images,
        "broken": broken,
        "wealth": watching.wealth(),
        "limit": watching.limit,
        "alarms": [asdict(each) for each in watching.alarms],
        "strangest": {kind: [asdict(each) for each in few] for kind, few in watching.strangest().items()},
    }
    say(json.dumps({"summary": summary}))
    for each in watching.alarms:
        note(f"alarm: new {each.kind}, noticed at image {each.index} ({each.name})")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was seen is kept, and told."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def object_files(
    predictor: "FilePredictor",
    model: str,
    *,
    threshold: float | None,
    wanted: bool,
    min_area: int | None,
) -> "ObjectFiles | None":
    """What collects unknown objects for `predict`; None where nobody wants them."""
    from gmmseg.inference.object_files import ObjectFiles

    if not wanted:
        if min_area is not None:
            raise ValueError("--min-area is the least area of an object: give --objects, too")
        return None
    if threshold is None and predictor.meaning.threshold is None:
        raise ValueError(
            f"{model} has no threshold for {predictor.meaning.score}, so nothing is unknown: give "
            f"--threshold, or find one for the default score: gmmseg calibrate {model} --data NAME:ROOT:val"
        )
    return ObjectFiles(predictor.class_names, min_area=min_area)
