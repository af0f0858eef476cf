"""What commands in several modules share: data sets by their names, trainings that may be stopped."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gmmseg.terminal import note

if TYPE_CHECKING:
    from gmmseg.samples import FingerprintedDataset


def next_prediction(model: str | Path) -> str:
    """What to type next with a model that is ready."""
    return f"next: gmmseg predict IMAGE --model {shlex.quote(str(model))} --out DIR"


def open_set(spec: str, default_split: str | None = None) -> "FingerprintedDataset":
    """The data set of NAME:ROOT[:SPLIT]; the built-in scenes are NAME[::SPLIT]."""
    from gmmseg import run

    return run.open_named(spec, default_split)


def judged_sets(
    source: str | Path, specs: Sequence[str], default_split: str | None = None
) -> "list[FingerprintedDataset]":
    """What the model of ``source`` is evaluated on for these data sets; see `run.judged_sets`."""
    from gmmseg import run

    return [part for spec in specs for part in run.judged_sets(source, open_set(spec, default_split))]


def validation_of(model: str) -> "FingerprintedDataset | None":
    """The validation set of a run; None where there is no run, or its data are gone."""
    from gmmseg import run

    config = run.run_config(Path(model))
    try:
        return None if config is None else run.validation_data(config.data)
    except (OSError, ValueError) as error:
        note(f"the validation set of {model} cannot be opened ({error})")
        return None


@contextmanager
def stoppable() -> Iterator[None]:
    """A training that was asked to stop says where its state is and how to continue; typer would drop it."""
    from gmmseg.training.trainer import Interrupted

    try:
        yield
    except Interrupted as stopped:
        note(str(stopped))
        leave_process_group()  # all processes stop together
        raise typer.Exit(130) from None


def leave_process_group() -> None:
    """Only after success. After an error the launcher ends the other processes, and waiting would hang."""
    if "torch.distributed" in sys.modules:
        from gmmseg import distributed

        distributed.leave()
