"""Monitoring: a calibrated model and a stream of images in, one observation per image out."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from gmmseg import distributed
from gmmseg.images import ImageError
from gmmseg.inference import Predictor
from gmmseg.inference.inputs import Input, find_inputs, images_of
from gmmseg.inference.monitor_state import read_state, write_state
from gmmseg.inference.watching import FALSE_ALARMS, Monitor, NoStatistics, Observation
from gmmseg.run.runs import open_model

LINES = "lines"
"""The input that is paths on standard input, one per line."""
SAVED_EVERY = 100
"""Images after which the state is written, and once more at the end."""


@dataclass(frozen=True)
class BrokenImage:
    """An image, or the rest of a video, that cannot be read: it is passed over."""

    name: str
    error: str


def open_monitor(
    model: str | Path, *, false_alarms: float | None = None, state_file: Path | None = None
) -> tuple[Predictor, Monitor]:
    """What predicts the images and what watches them, the latter as it was left in ``state_file``.

    ``false_alarms``: the probability of ever raising a false alarm; that of the state, or 1 %.
    """
    if distributed.several():
        raise ValueError("a stream is watched in its order: run gmmseg monitor as one process")
    segmenter = open_model(model)
    left = None if state_file is None else read_state(state_file)
    usual = FALSE_ALARMS if left is None else left.false_alarms
    try:
        asked = usual if false_alarms is None else false_alarms
        monitor = Monitor(segmenter.calibration, false_alarms=asked)
    except NoStatistics:
        raise NoStatistics(str(model)) from None
    if left is not None:
        try:
            monitor.restore(left)
        except ValueError as error:
            raise ValueError(f"{state_file}: {error}") from error
    return Predictor(segmenter), monitor


def stream(source: str, lines: Iterable[str]) -> Iterator[Input]:
    """The inputs of a file, a folder in the order of its names, or, for LINES, of the paths in ``lines``."""
    if source == LINES:
        paths = (line.rstrip("\r\n") for line in lines)
        return (Input(Path(path), path, path) for path in paths if path)
    found = find_inputs([source])
    if not found:
        raise FileNotFoundError(f"no images or videos in {source}")
    return iter(found)


def watch(
    predictor: Predictor, monitor: Monitor, inputs: Iterable[Input], *, state_file: Path | None = None
) -> Generator[Observation | BrokenImage, None, None]:
    """Show every image and frame to the monitor, one after the other; what cannot be read is passed over.

    The state is written to ``state_file`` now and then, and at the end, also when the caller stops early.
    """
    try:
        for item in inputs:
            for seen in _seen(predictor, monitor, item):
                yield seen
                if state_file is not None and monitor.images % SAVED_EVERY == 0:
                    write_state(monitor.state(), state_file)
    finally:
        if state_file is not None:
            write_state(monitor.state(), state_file)


def _seen(predictor: Predictor, monitor: Monitor, item: Input) -> Iterator[Observation | BrokenImage]:
    """What the monitor says of the images of one input."""
    try:
        for name, pixels in images_of(item, predictor.max_pixels):
            with torch.no_grad():
                scores = torch.cat([strip.anomaly.cpu() for strip in predictor.strips(pixels)])
            yield monitor.update(name, scores)
    except (ImageError, OSError) as error:
        yield BrokenImage(item.name, str(error))
