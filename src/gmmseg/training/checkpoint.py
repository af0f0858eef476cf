"""Checkpoints of a run: written atomically, checked when read, the newest two kept."""

import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor

from gmmseg.atomic import write_atomically
from gmmseg.mixture.em import EMState

KEEP = 2


class TrainingState(TypedDict, total=False):
    """Everything a run needs to go on exactly; earlier versions have written fewer of the parts."""

    step: int
    epoch: int
    batches_done: int
    best: float
    segmenter: dict[str, Tensor]
    optimizer: dict[str, object]
    schedule: dict[str, object]
    em: EMState | None
    em_of_companions: NotRequired[list[EMState]]
    average: dict[str, Tensor] | None
    loss: dict[str, Tensor] | None
    warm_classifier: dict[str, Tensor] | None
    """Where earlier versions wrote what is now under ``loss``."""
    about: dict[str, object] | None


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says what to do instead."""


def save_checkpoint(folder: Path, step: int, state: TrainingState, *, label: str = "step") -> Path:
    """Write ``state`` as folder/<label>_<step>.pt; earlier steps beyond the newest two are removed.

    The file appears under its name only when it is whole and on disk, so a run killed at any moment leaves
    a folder that can be resumed.
    """
    path = folder / f"{label}_{step:08d}.pt"
    write_atomically(path, lambda file: torch.save(state, file))
    for old in list_checkpoints(folder)[KEEP:]:
        old.unlink()
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, newest first."""
    return sorted(folder.glob("step_*.pt"), reverse=True)


def find_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run folder, or the file itself when ``run`` is one; None without any."""
    if run.suffix == ".pt" or run.is_file():
        return run
    return next(iter(list_checkpoints(run / "checkpoints")), None)


def named_checkpoint(source: Path) -> Path:
    """`find_checkpoint` where there must be one; CheckpointError otherwise."""
    path = find_checkpoint(source)
    if path is None or not path.is_file():
        raise CheckpointError(
            f"{source}: there is no such checkpoint; name a file checkpoints/step_*.pt of a run, "
            "or a run folder that holds some"
        )
    return path


def load_checkpoint(path: Path) -> TrainingState:
    """The state in ``path``; a damaged or foreign file is refused, with the way to go on without it."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    try:
        _check_whole(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for broken files
        raise CheckpointError(
            f"{path}: damaged, truncated or not a checkpoint of this program; {_way_on(path)}"
        ) from error
    if not isinstance(state, dict) or "step" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of a training run")
    odd = [name for name, fits in _KINDS.items() if name in state and not fits(state[name])]
    if odd:
        raise CheckpointError(
            f"{path}: not what a training run writes under {', '.join(map(repr, odd))}; {_way_on(path)}"
        )
    return cast(TrainingState, state)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_state(value: object) -> bool:
    return isinstance(value, dict)


def _is_part(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_plain(value: object) -> bool:
    """Whether it can be compared with settings: words, numbers, and lists and dictionaries of them."""
    if isinstance(value, dict | list):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | int | float)


_KINDS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("step", "epoch", "batches_done"), _is_count),
    "best": lambda value: type(value) in (int, float) and value == value,
    **dict.fromkeys(("segmenter", "optimizer", "schedule"), _is_state),
    **dict.fromkeys(("em", "average", "loss", "warm_classifier"), _is_part),
    "about": lambda value: _is_part(value) and _is_plain(value),
}
"""What the parts of a TrainingState must be."""


def set_newer_aside(folder: Path, step: int) -> list[Path]:
    """Rename checkpoints beyond ``step``, where a run goes on from; returns what they are called now.

    Otherwise the next `--resume` would take one of them, which this run no longer leads to.
    """
    newer = [path for path in list_checkpoints(folder) if path.stem > f"step_{step:08d}"]
    return [path.rename(path.with_suffix(".pt.unused")) for path in newer]


def resume_command(run: Path, *options: str) -> str:
    """What to type to go on with the run in a folder: the settings it was started with are in it."""
    words = ["gmmseg", "train", str(run / "config.yaml"), "--out", str(run), *(options or ("--resume",))]
    return shlex.join(words)


def _check_whole(path: Path) -> None:
    """torch writes a CRC-32 of every record and does not look at it when it reads."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the record {damaged} has changed since it was written")


def _way_on(path: Path) -> str:
    older = [each for each in list_checkpoints(path.parent) if each.name < path.name]
    if not older:
        return "there is none before it: start anew with another --out"
    command = resume_command(path.parent.parent, "--resume-from", str(older[0]))
    return f"go on from the one before it: {command}"
