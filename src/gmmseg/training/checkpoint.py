"""Checkpoints of a run: written atomically, read safely, the newest two kept."""

from pathlib import Path
from typing import Any

import torch

from gmmseg.atomic import LEFTOVER_PREFIX, write_atomically

KEEP = 2


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says what to use instead."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, label: str = "step") -> Path:
    """Write ``state`` as folder/<label>_<step>.pt; earlier steps beyond the newest two are removed.

    The file appears under its name only when it is whole and on disk, so a run killed at any moment leaves
    a folder that can be resumed.
    """
    path = folder / f"{label}_{step:08d}.pt"
    write_atomically(path, lambda file: torch.save(state, file))
    for old in list_checkpoints(folder)[KEEP:]:
        old.unlink()
    for leftover in folder.glob(f"{LEFTOVER_PREFIX}*"):
        leftover.unlink(missing_ok=True)  # of a run that was killed while writing
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, newest first."""
    return sorted(folder.glob("step_*.pt"), reverse=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state in ``path``; a truncated or foreign file is refused, naming the checkpoint before it."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for broken files
        older = [each for each in list_checkpoints(path.parent) if each.name < path.name]
        advice = f"resume from the one before it: --resume {older[0]}" if older else "there is none before it"
        raise CheckpointError(f"{path}: truncated or not a checkpoint of this program; {advice}") from error
    if not isinstance(state, dict) or "step" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of a training run")
    return state


def find_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run folder, or the file itself when ``run`` is one."""
    if run.is_file():
        return run
    found = list_checkpoints(run / "checkpoints")
    if not found:
        raise CheckpointError(f"{run}: no checkpoints here to resume from (looked in {run / 'checkpoints'})")
    return found[0]
