"""Segmenters by folder or hub name."""

from pathlib import Path
from typing import Any

from torch import nn

from gmmseg.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, read_config, read_state
from gmmseg.models.heads import HeadSettings
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.zoo import build


def from_pretrained(folder: str | Path, *, architecture: nn.Module | None = None) -> Segmenter:
    """The segmenter in ``folder`` (or in a repository of the hub), in evaluation mode.

    ``architecture`` is needed for a network that gmmseg cannot build by itself: either the module that
    was given to `convert`, or a Segmenter of the same structure; its weights are overwritten.
    """
    place = _local(folder)
    config = read_config(place)
    segmenter = _rebuild(config, architecture, place)
    read_state(segmenter, place)
    segmenter.label_names = tuple(config["label_names"]) if config["label_names"] else None
    segmenter.colours = tuple(map(tuple, config["colours"])) if config["colours"] else None
    segmenter.threshold = config["threshold"]
    return segmenter.eval()


def _local(folder: str | Path) -> Path:
    if Path(folder).is_dir():
        return Path(folder)
    if str(folder).count("/") != 1 or str(folder).startswith((".", "/", "~")):
        raise FileNotFoundError(f"{folder}: no such folder, and not a name on the hub (owner/name)")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(folder), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))


def _rebuild(config: dict[str, Any], architecture: nn.Module | None, place: Path) -> Segmenter:
    if isinstance(architecture, Segmenter):
        return architecture
    recipe = config["recipe"]
    head = HeadSettings(**recipe["head"])
    return build(recipe["name"], num_classes=recipe["num_classes"], head=head)
