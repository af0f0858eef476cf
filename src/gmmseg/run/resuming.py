"""What a resumed run may change: its settings compared with those its checkpoint was written under."""

from collections.abc import Callable
from pathlib import Path

import torch

from gmmseg.config import LATER_TRAIN, Config, ConfigError, Machine, config_tree, load_config
from gmmseg.models.heads import present_words
from gmmseg.samples import SegmentationDataset
from gmmseg.training.checkpoint import CheckpointError

FREE = ("name", "preset", "machine", "data.validation_split", "data.workers", "data.keep", "inference.",
        "model.weights", "train.log_every", "train.validate_every", "train.save_every",
        "train.tensorboard", "train.density", "train.exemplars")  # fmt: skip
"""No influence on the weights a run arrives at (model.weights is where it started; preset and machine are
words for fields that are compared one by one)."""
FIXED = ("model.", "data.name", "data.train_split", "data.held_out", "data.balanced", "em.memory",
         "train.batch_size", "train.seed", "train.optimizer", "train.decoders", "classes", "images",
         "processes")  # fmt: skip
"""Parts of the saved state, or the place in the order of images, would not fit."""
SWITCHES = ("train.ema", "train.softmax_steps", "train.backbone_multiplier")
"""May take other values, but not begin or cease to be 0 or null: parts of the state come and go with them."""


def machine_to_train_on(resumed: Path | None, cpu: bool) -> Machine:
    """What settings are to be made for: as the run to be ``resumed`` was, else what there is here.

    ``resumed``: a run folder, or a checkpoint file in one. ``cpu``: a GPU, if there is one, is not used.
    """
    folder = resumed.parent.parent if resumed is not None and resumed.is_file() else resumed
    if folder is not None and (folder / "config.yaml").is_file():
        try:
            return load_config(folder / "config.yaml").machine
        except ConfigError:
            pass  # damaged: the checkpoint itself has the settings that these are compared with
    return "gpu" if torch.accelerator.is_available() and not cpu else "cpu"


def describe_run(config: Config, dataset: SegmentationDataset, processes: int) -> dict[str, object]:
    """What a checkpoint remembers of its run: every setting by its dotted name, the data, the processes."""
    assert dataset.label_space is not None
    return {
        **_flat(config_tree(config)),
        "classes": list(dataset.label_space.names),
        "images": len(dataset),
        "processes": processes,
    }


def check_resumable(
    path: Path, before: dict[str, object] | None, now: dict[str, object], say: Callable[[str], object]
) -> None:
    """Say what differs from the run that wrote ``path``; CheckpointError for what cannot change."""
    if before is None:
        say(f"warning: {path} was written by an earlier version, without its settings: they are not compared")
        return
    before = _in_present_words(before)
    changed = [key for key in now if key in before and before[key] != now[key]]
    fixed = [key for key in changed if _is_fixed(key, before[key], now[key])]
    if fixed:
        raise CheckpointError(
            f"{path}: settings that cannot change on the way: {_listed(fixed, before, now)}; "
            "resume with those it was started with, or start a new run with another --out"
        )
    free = [key for key in changed if key.startswith(FREE)]
    moved = [key for key in changed if key == "data.root"]
    steering = [key for key in changed if key not in free + moved]
    if free:
        say(f"resumed with other settings, to the same weights: {_listed(free, before, now)}")
    if moved:
        say(
            f"warning: resumed with images from elsewhere: {_listed(moved, before, now)}; "
            "the weights stay the same only if the images there are the same"
        )
    if steering:
        say(
            f"warning: resumed with other settings: {_listed(steering, before, now)}; "
            "the weights will be those of neither run"
        )


def _in_present_words(before: dict[str, object]) -> dict[str, object]:
    """The settings of a run that an earlier version may have begun, as this version says them."""
    prefix = "model.head."
    head = {key.removeprefix(prefix): value for key, value in before.items() if key.startswith(prefix)}
    present = {f"{prefix}{key}": value for key, value in present_words(head).items()}
    return {"train.decoders": LATER_TRAIN["decoders"], **before, **present}


def _is_fixed(key: str, before: object, now: object) -> bool:
    if key in SWITCHES:
        return bool(before) != bool(now)
    return key.startswith(FIXED) and not key.startswith(FREE)


def _listed(keys: list[str], before: dict[str, object], now: dict[str, object], most: int = 6) -> str:
    """Keys with both values, the first of them, for a message of a few lines."""
    each = [f"{key} {_short(before[key])} -> {_short(now[key])}" for key in keys[:most]]
    return ", ".join(each) + (f" and {len(keys) - most} more" if len(keys) > most else "")


def _short(value: object, most: int = 60) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
