"""Segmenters by folder or hub name."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args

from torch import nn

from gmmseg.bounds import broken_rule, shown
from gmmseg.json_tree import JSON
from gmmseg.mixture.mixture import Group
from gmmseg.models.calibration_file import (
    CALIBRATION_FILE,
    Calibration,
    calibration_of_format_1,
    possible_scores,
    read_calibration,
)
from gmmseg.models.companion import Companion, Kind, Members, companion_of
from gmmseg.models.conversion import Triple, convert
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.heads import HeadSettings, present_words
from gmmseg.models.hub import PREFIX, download, offline
from gmmseg.models.huggingface import rebuild_transformers
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.light import rebuild_light
from gmmseg.models.recipe import Recipe, with_classes
from gmmseg.models.reference_import import build_reference
from gmmseg.models.saving import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    ClassCount,
    digest,
    mixtures,
    read_config,
    read_state,
)
from gmmseg.models.segmenter import Segmenter, replace_head
from gmmseg.models.smp import rebuild_smp
from gmmseg.models.torchvision_models import rebuild_torchvision
from gmmseg.models.weights import WeightsError
from gmmseg.models.zoo import build_named

_MOST_COMPANIONS = 64
REBUILDERS = {"transformers": rebuild_transformers, "smp": rebuild_smp, "torchvision": rebuild_torchvision}


def from_pretrained(
    folder: str | Path, *, architecture: nn.Module | None = None, calibrated: bool = True
) -> Segmenter:
    """The segmenter in ``folder``, or in the repository ``hf:owner/name`` of the hub, in evaluation mode.

    A folder is loaded without asking anything of the network.

    ``architecture`` is needed for a network that gmmseg cannot build by itself: either a module like the
    one given to `convert`, or a Segmenter of the same structure; its weights are overwritten.
    ``calibrated``: with the calibration beside the weights, if there is one; False leaves it unread.
    """
    place = _local(folder)
    config = read_config(place)
    with offline():
        segmenter = _built(config, architecture, place)
    if segmenter.num_classes != config["num_classes"]:
        raise WeightsError(
            f"{place}: {config['num_classes']} classes, the architecture has {segmenter.num_classes}"
        )
    segmenter.density = _density(config, place)
    segmenter.companions = nn.ModuleList(_companions(config, architecture, place))
    _set_groups(segmenter, config.get("groups", {}), place)
    read_state(segmenter, place)
    segmenter.label_names = tuple(config["label_names"]) if config["label_names"] else None
    segmenter.colours = tuple(map(tuple, config["colours"])) if config["colours"] else None
    segmenter.calibration = _calibration(segmenter, config, place) if calibrated else None
    segmenter.inference = _inference(config.get("inference", {}), place)
    return segmenter.eval()


def _calibration(segmenter: Segmenter, config: JSON, place: Path) -> Calibration | None:
    """What was found after training, in its own file or, in weights of format 1, in config.json."""
    if config.get("companion") is not None and (place / CALIBRATION_FILE).is_file():
        warnings.warn(
            f"{place}: its calibration is of an earlier version, which put the two classifiers of an adapted "
            "model together in another way, and is not used; gmmseg calibrate writes one anew",
            stacklevel=3,
        )
        return None
    weights = digest(segmenter)
    scores = possible_scores(segmenter.density is not None)
    found = read_calibration(place, weights, segmenter.num_classes, segmenter.label_names, scores)
    return found or calibration_of_format_1(config, weights)


def _inference(entry: JSON, place: Path) -> InferenceSettings:
    try:
        return InferenceSettings(**entry).override()
    except (TypeError, ValueError) as error:
        path = place / CONFIG_FILE
        raise WeightsError(f"{path}: the entry inference is not understood ({error})") from error


def _density(config: JSON, place: Path) -> CellDensity | None:
    """The density beside the head, not yet filled, of weights that have one."""
    entry = config.get("density")
    if entry is None:
        return None
    try:
        return CellDensity(config["num_classes"], DensitySettings(**entry))
    except (TypeError, ValueError) as error:
        path = place / CONFIG_FILE
        raise WeightsError(f"{path}: the entry density is not understood ({error})") from error


def _companions(config: JSON, architecture: nn.Module | None, place: Path) -> Iterator[Companion]:
    """The classifiers beside the head, not yet filled, of weights that have some."""
    try:
        networks: dict[tuple[HeadSettings, int], Segmenter] = {}
        for entry in _companion_entries(config):
            settings = HeadSettings(**present_words(entry["head"]))
            classes, members = entry["num_classes"], entry.get("members")
            fault = broken_rule(classes, ClassCount)
            if fault or entry["kind"] not in get_args(Kind):
                raise ValueError(f"num_classes {shown(classes)}, kind {shown(entry['kind'])}")
            if members is None and classes != config["num_classes"]:
                raise ValueError("its classes are others, and nothing says which")
            if (settings, classes) not in networks:
                networks[settings, classes] = _of_companion(config, settings, classes, architecture, place)
            network = networks[settings, classes]
            companion = companion_of(network.features, network.head, entry["kind"], settings)
            companion.members = None if members is None else _members(members, config, classes)
            yield companion
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        path = place / CONFIG_FILE
        raise WeightsError(
            f"{path}: the entry companions is not understood or does not fit the network: {error}"
        ) from error


def _companion_entries(config: JSON) -> list[JSON]:
    """What config.json says of classifiers beside the head; files of earlier versions have one at the most,
    of a softmax model, and name its kind alone."""
    earlier = config.get("companion")
    if earlier is None:
        entries = list(config.get("companions") or ())
        if len(entries) > _MOST_COMPANIONS:
            raise ValueError(f"{len(entries)} of them, where {_MOST_COMPANIONS} are the most")
        return entries
    softmax = asdict(HeadSettings(kind="softmax"))
    return [{"kind": earlier, "head": softmax, "num_classes": config["num_classes"]}]


def _members(entry: Sequence[Sequence[object]], config: JSON, classes: int) -> Members:
    found = tuple(tuple(_whole_number(row) for row in rows) for rows in entry)
    if len(found) != config["num_classes"] or not any(found):
        raise ValueError(f"{len(found)} classes for {config['num_classes']}, or none of them known")
    rows = [row for each in found for row in each]
    if any(not 0 <= row < classes for row in rows) or len(set(rows)) < len(rows):
        raise ValueError(f"classes that a companion of {classes} classes does not have, or has once")
    return found


def _of_companion(
    config: JSON, settings: HeadSettings, classes: int, architecture: nn.Module | None, place: Path
) -> Segmenter:
    """A network with the decoder and the head that a companion has, for so many classes."""
    recipe = config["recipe"]
    if isinstance(architecture, Segmenter) and (recipe is None or recipe["source"] == "module"):
        return replace_head(architecture, settings, num_classes=classes)
    # A recipe knows the network's own classifier, which need not be a 1x1 convolution.
    given = None if isinstance(architecture, Segmenter) else architecture
    names = tuple(f"class {index}" for index in range(classes))
    wanted = {**with_classes(recipe, names), "head": asdict(settings)} if recipe else None
    with offline():
        return _built({**config, "recipe": wanted}, given, place)


def _set_groups(segmenter: Segmenter, entry: JSON, place: Path) -> None:
    """Which classes of the mixtures came together, of weights whose config.json says it."""
    try:
        for part, mixture in mixtures(segmenter).items():
            if part in entry:
                mixture.groups = tuple(Group(*map(_whole_number, group)) for group in entry[part])
    except (TypeError, ValueError) as error:
        path = place / CONFIG_FILE
        raise WeightsError(f"{path}: the entry groups is not understood ({error})") from error


def _whole_number(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is no whole number")
    return value


def _local(folder: str | Path) -> Path:
    if str(folder).startswith(PREFIX):
        return download(str(folder).removeprefix(PREFIX), [CONFIG_FILE, WEIGHTS_FILE, CALIBRATION_FILE])
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; a name on the hub is written {PREFIX}owner/name")
    return Path(folder)


def _built(config: JSON, architecture: nn.Module | None, place: Path) -> Segmenter:
    """`from_recipe`, where a damaged or foreign recipe is refused by the name of its file."""
    try:
        return from_recipe(config["recipe"], architecture, str(place))
    except (WeightsError, ImportError, OSError):
        raise
    except Exception as error:  # a recipe is read by the builders of four libraries
        missing = "it has no key " if isinstance(error, KeyError) else ""
        raise WeightsError(
            f"{place / CONFIG_FILE}: no network can be built from its recipe: {missing}{error}; "
            "fetch or write it again"
        ) from error


def from_recipe(recipe: Recipe | None, architecture: nn.Module | None, place: str) -> Segmenter:
    """The segmenter that a recipe describes, with random weights; ``place`` is where the recipe was found."""
    if isinstance(architecture, Segmenter):
        return architecture
    if recipe is None:
        raise WeightsError(f"{place}: assembled by hand; give a Segmenter of the same parts as architecture=")
    source = recipe["source"]
    if source == "zoo":
        settings = HeadSettings(**present_words(recipe["head"]))
        return build_named(recipe["name"], recipe["num_classes"], settings)
    if source == "timm":
        return rebuild_light(recipe)
    if source == "reference":
        return build_reference(recipe)
    if source in REBUILDERS:
        architecture = REBUILDERS[source](recipe)
    if architecture is None:
        raise WeightsError(f"{place}: converted from a module of your own; give one like it as architecture=")
    return convert(
        architecture,
        head=HeadSettings(**present_words(recipe["head"])),
        num_classes=recipe["num_classes"],
        classifier=recipe.get("classifier"),
        mean=cast(Triple, tuple(recipe["mean"])),
        std=cast(Triple, tuple(recipe["std"])),
    )
