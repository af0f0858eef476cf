"""Segmenters by folder or hub name."""

from pathlib import Path
from typing import Any

from torch import nn

from gmmseg.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, read_config, read_state
from gmmseg.models.convert import convert
from gmmseg.models.heads import HeadSettings
from gmmseg.models.huggingface import rebuild_transformers
from gmmseg.models.reference_import import build_reference
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.smp import rebuild_smp
from gmmseg.models.torchvision_models import rebuild_torchvision
from gmmseg.models.weights import WeightsError
from gmmseg.models.zoo import build

REBUILDERS = {"transformers": rebuild_transformers, "smp": rebuild_smp, "torchvision": rebuild_torchvision}


def from_pretrained(folder: str | Path, *, architecture: nn.Module | None = None) -> Segmenter:
    """The segmenter in ``folder`` (or in a repository of the hub), in evaluation mode.

    ``architecture`` is needed for a network that gmmseg cannot build by itself: either a module like the
    one given to `convert`, or a Segmenter of the same structure; its weights are overwritten.
    """
    place = _local(folder)
    config = read_config(place)
    segmenter = _built(config, architecture, place)
    if segmenter.num_classes != config["num_classes"]:
        raise WeightsError(
            f"{place}: {config['num_classes']} classes, the architecture has {segmenter.num_classes}"
        )
    read_state(segmenter, place)
    segmenter.label_names = tuple(config["label_names"]) if config["label_names"] else None
    segmenter.colours = tuple(map(tuple, config["colours"])) if config["colours"] else None
    segmenter.threshold = config["threshold"]
    # These two are missing in weights written before there were any.
    segmenter.temperature = config.get("temperature", 1.0)
    segmenter.typical = tuple(config["typical"]) if config.get("typical") else None
    return segmenter.eval()


def _local(folder: str | Path) -> Path:
    if Path(folder).is_dir():
        return Path(folder)
    if str(folder).count("/") != 1 or str(folder).startswith((".", "/", "~")):
        raise FileNotFoundError(f"{folder}: no such folder, and not a name on the hub (owner/name)")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(folder), allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))


def _built(config: dict[str, Any], architecture: nn.Module | None, place: Path) -> Segmenter:
    """`_rebuild`, with a recipe that is damaged or of somebody else's making refused by the file's name."""
    try:
        return _rebuild(config["recipe"], architecture, place)
    except (WeightsError, ImportError, OSError):
        raise
    except Exception as error:  # a recipe is read by the builders of four libraries
        missing = "it has no key " if isinstance(error, KeyError) else ""
        raise WeightsError(
            f"{place / CONFIG_FILE}: no network can be built from its recipe: {missing}{error}; "
            "fetch or write it again"
        ) from error


def _rebuild(recipe: dict[str, Any] | None, architecture: nn.Module | None, place: Path) -> Segmenter:
    if isinstance(architecture, Segmenter):
        return architecture
    if recipe is None:
        raise WeightsError(f"{place}: assembled by hand; give a Segmenter of the same parts as architecture=")
    source = recipe["source"]
    if source == "zoo":
        return build(recipe["name"], num_classes=recipe["num_classes"], head=HeadSettings(**recipe["head"]))
    if source == "reference":
        return build_reference(recipe)
    if source in REBUILDERS:
        architecture = REBUILDERS[source](recipe)
    if architecture is None:
        raise WeightsError(f"{place}: converted from a module of your own; give one like it as architecture=")
    return convert(
        architecture,
        head=HeadSettings(**recipe["head"]),
        num_classes=recipe["num_classes"],
        classifier=recipe.get("classifier"),
        mean=tuple(recipe["mean"]),
        std=tuple(recipe["std"]),
    )
