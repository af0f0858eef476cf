"""What a run has left behind: its weights, its configuration, and what its model is judged on."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gmmseg.class_colours import default_colours
from gmmseg.config import Config, load_config
from gmmseg.data import open_dataset
from gmmseg.data.catalog import is_anomaly_set
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.data.matched import MatchedClasses
from gmmseg.inference.exporting import is_exported
from gmmseg.inference.predictor import UNFITTED
from gmmseg.json_tree import JSON
from gmmseg.labels import LabelSpace
from gmmseg.models import Segmenter, from_pretrained
from gmmseg.models.classes import match_classes
from gmmseg.models.saving import CONFIG_FILE, RUN_PARTS, read_config, refresh_card
from gmmseg.models.weights import WeightsError
from gmmseg.samples import FingerprintedDataset


def open_model(source: str | Path, *, calibrated: bool = True) -> Segmenter:
    """A segmenter from a run folder (its best weights), a folder of weights, or the hub (hf:owner/name).

    One whose mixtures nobody has fitted is refused: it would show noise. ``calibrated``: as in
    `from_pretrained`.
    """
    if Path(source).is_file():
        cure = (
            "is an exported file, and this command needs a folder of weights: exported files are for gmmseg "
            "predict; give the weights it was made from"
            if is_exported(Path(source))
            else "is a file and no model: give a folder of weights, a run folder or, to gmmseg predict, an "
            "exported file (.onnx, .xml or .pt2)"
        )
        raise ValueError(f"{source} {cure}")
    model = from_pretrained(next(iter(weights_of(Path(source))), source), calibrated=calibrated)
    if not model.is_fitted:
        raise ValueError(f"{source}: {UNFITTED}")
    return model


def open_named(spec: str, default_split: str | None = None) -> FingerprintedDataset:
    """The data set of NAME:ROOT[:SPLIT]; the built-in scenes are NAME[::SPLIT].

    Without a split it is ``default_split``, or val, or, of anomaly sets, the one they have.
    """
    name, _, rest = spec.partition(":")
    root, _, split = rest.rpartition(":") if ":" in rest else (rest, "", "")
    chosen = split or default_split or (None if is_anomaly_set(name) else "val")
    return open_dataset(name, os.path.expanduser(root) or None, chosen)


def whole_validation_set(folder: Path) -> FingerprintedDataset | None:
    """The validation set of a run with all its classes, those held out too; None where there is no run."""
    config = run_config(folder)
    if config is None or config.data.validation_split is None:
        return None
    return open_dataset(config.data.name, config.data.root, config.data.validation_split)


def weights_of(run_folder: Path) -> list[Path]:
    """The folders of weights a run has left, the best first."""
    parts = (run_folder / part for part in RUN_PARTS)
    return [part for part in parts if (part / CONFIG_FILE).is_file()]


def refresh_cards(source: Path) -> None:
    """Bring the model cards of a run folder or a folder of weights up to date, after results were written."""
    for folder in weights_of(source) or [source]:
        if (folder / CONFIG_FILE).is_file():
            refresh_card(folder)


def run_config(folder: Path) -> Config | None:
    """The configuration a run folder, or a folder of weights in one, was trained with."""
    place = run_folder_of(folder)
    return None if place is None else load_config(place / "config.yaml")


def run_folder_of(folder: Path) -> Path | None:
    """The run folder that ``folder`` is, or that it is a folder of weights in."""
    places = (folder, folder.parent) if folder.name in RUN_PARTS else (folder,)
    return next((place for place in places if (place / "config.yaml").is_file()), None)


def judged_sets(source: str | Path, dataset: FingerprintedDataset) -> list[FingerprintedDataset]:
    """What the model of a run is judged on when it is given ``dataset``: that, if no class was held out.

    A labelled set that holds the classes the run held out becomes two: the known classes without the hidden
    ones, and the hidden ones as an anomaly set. A set that has the model's classes in another order, or not
    all of them, as after `gmmseg add-class`, is brought into the model's.
    """
    if dataset.label_space is None:
        return [dataset]
    names = dataset.label_space.names
    hidden = _held_out(Path(source), names)
    if hidden and set(hidden) <= set(names):
        return [WithoutClasses(dataset, hidden), HiddenClasses(dataset, hidden)]
    own = _class_names(Path(source))
    if set(names) <= set(own) and names != own:
        return [matched_classes(dataset, own)]
    return [dataset]


def matched_classes(
    dataset: FingerprintedDataset,
    names: Sequence[str],
    colours: Sequence[tuple[int, int, int]] | None = None,
    also: Mapping[str, str] | None = None,
) -> FingerprintedDataset:
    """``dataset`` in a model's classes ``names``, matched by name; classes it does not have are ignored.

    ``also``: which class of the model other names of the set stand for.
    """
    space = dataset.label_space
    if space is None:
        raise ValueError(f"{dataset.name} marks what is unknown, not classes: give labelled images")
    others = match_classes(tuple(also or {}), space.names)
    meant = [
        name if row is None else list((also or {}).values())[row] for name, row in zip(space.names, others)
    ]
    wanted = match_classes(names, meant)
    if all(place is None for place in wanted):
        raise ValueError(
            f"{dataset.name} has none of the model's classes, {', '.join(names)}: give images of those"
        )
    palette = tuple(colours) if colours else default_colours(len(names))
    return MatchedClasses(dataset, LabelSpace(tuple(names), palette), wanted)


def _class_names(source: Path) -> tuple[str, ...]:
    """The names of a model's classes; none where its folder does not say."""
    folder = next((place for place in (*weights_of(source), source) if (place / CONFIG_FILE).is_file()), None)
    return () if folder is None else tuple(_stored(folder).get("label_names") or ())


def _held_out(source: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Which of a set's classes the model was not to see: as its run says, or, of weights that have left their
    run, those it has no name for while it has one for every class of its own in the set."""
    config = run_config(source)
    if config is not None:
        return config.data.held_out
    known = _class_names(source)
    known_apart = bool(known) and set(known) < set(names)  # weights without names hide nothing
    return tuple(name for name in names if name not in known) if known_apart else ()


def is_generative(source: str | Path) -> bool:
    """Whether a run folder or a folder of weights holds a model of ours with mixtures for a head."""
    folder = next(iter(weights_of(Path(source))), Path(source))
    head = (_stored(folder).get("recipe") or {}).get("head")
    return isinstance(head, dict) and head.get("kind") == "gmm"


def _stored(folder: Path) -> JSON:
    """What config.json of ``folder`` says; nothing where there is none, or it is not one of ours."""
    if not (folder / CONFIG_FILE).is_file():
        return {}
    try:
        return read_config(folder)
    except WeightsError:  # whoever opens the folder says what is wrong
        return {}
