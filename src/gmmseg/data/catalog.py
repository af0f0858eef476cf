"""The data sets by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gmmseg.data import anomaly, layouts
from gmmseg.data.paired import Listing, PairedFiles
from gmmseg.data.parquet import open_parquet
from gmmseg.data.reading import DataError
from gmmseg.data.scenes import Scenes, ScenesAnomaly, Streets, StreetsAnomaly
from gmmseg.data.spaces import load_label_space
from gmmseg.labels import LabelSpace
from gmmseg.samples import FingerprintedDataset


@dataclass(frozen=True)
class Layout:
    """How to find a data set's files. ``official`` is how many images its splits are known to have."""

    listing: Callable[[Path, str], Listing]
    splits: Callable[[Path], tuple[str, ...]]
    label_space: Callable[[Path], LabelSpace] | None
    official: dict[str, int | None] = field(default_factory=dict)


def _closed(name: str, listing: Callable[[Path, str], Listing], **official: int) -> Layout:
    return Layout(listing, lambda root: tuple(official), lambda root: load_label_space(name), dict(official))


def _anomaly(listing: Callable[[Path, str], Listing], **official: int | None) -> Layout:
    return Layout(listing, lambda root: tuple(official), None, official)


LAYOUTS = {
    "cityscapes": _closed("cityscapes", layouts.cityscapes, train=2975, val=500, test=1525),
    "ade20k": _closed("ade20k", layouts.ade20k, train=20210, val=2000),
    "coco_stuff_10k": _closed("coco_stuff_10k", layouts.coco_stuff_10k, train=9000, val=1000, test=1000),
    "camvid": _closed("camvid", layouts.camvid, train=367, val=101, test=233),
    "folder": Layout(layouts.folder, layouts.folder_splits, layouts.folder_label_space),
    "fishyscapes_lost_and_found": _anomaly(anomaly.fishyscapes_lost_and_found, val=100),
    "fishyscapes_static": _anomaly(anomaly.fishyscapes_static, val=30),
    "road_anomaly": _anomaly(anomaly.road_anomaly, test=60),
    "segment_me_anomaly": _anomaly(anomaly.segment_me_anomaly, val=10, test=100),
    "segment_me_obstacle": _anomaly(anomaly.segment_me_obstacle, val=30, test=None),
    "lost_and_found": _anomaly(anomaly.lost_and_found, test=None, train=None),
    "anomaly_folder": Layout(anomaly.anomaly_folder, anomaly.anomaly_folder_splits, None),
}
HUB_SETS = ("hf", "hf_stream")
"""Sets of the Hugging Face hub and folders of parquet files: copied to a cache, or read where they are."""
BUILT_IN: dict[str, type[Scenes] | type[ScenesAnomaly]] = {
    each.name: each for each in (Scenes, ScenesAnomaly, Streets, StreetsAnomaly)
}
DATASETS = (*LAYOUTS, *HUB_SETS, *BUILT_IN)


def open_dataset(name: str, root: str | Path | None, split: str | None = None) -> FingerprintedDataset:
    """The data set ``name`` found under ``root``; the built-in scenes need no root.

    The root of `hf` and `hf_stream` may be a name on the hub. ``split`` may be left out for anomaly sets,
    whose first split is then taken. Missing files are an error that names them; label values are checked as
    they are read.
    """
    if name in BUILT_IN:
        if root:
            raise DataError(
                f"{name} is built in and has no folder, got {str(root)!r}: leave it out (a split goes behind "
                f"two colons in --data, {name}::test)"
            )
        built_in = BUILT_IN[name]
        return built_in(_chosen(name, split, tuple(built_in.lengths), is_anomaly_set(name)))
    if name in HUB_SETS:
        return open_parquet(name, root, split)
    layout, folder = find_layout(name), find_root(name, root)
    chosen = _chosen(f"{name} in {folder}", split, layout.splits(folder), is_anomaly_set(name))
    listing = layout.listing(folder, chosen)
    if listing.problems:
        raise DataError(
            f"{name}, split {chosen!r} under {folder}: {len(listing.problems)} problems, such as "
            f"{'; '.join(listing.problems[:3])}; `gmmseg data check {name} {folder}` lists all of them"
        )
    if not listing.pairs:
        doc = (layout.listing.__doc__ or "").strip()
        raise DataError(f"{name}: no images of split {chosen!r} under {folder}; expected {doc}")
    label_space = layout.label_space(folder) if layout.label_space else None
    return PairedFiles(name, chosen, listing.pairs, label_space, listing.version, folder)


def is_anomaly_set(name: str) -> bool:
    """Whether the data set of that name marks what is unknown, and has no classes."""
    if name in BUILT_IN:
        return issubclass(BUILT_IN[name], ScenesAnomaly)
    return name in LAYOUTS and LAYOUTS[name].label_space is None


def find_layout(name: str) -> Layout:
    """The layout of a data set kept in files; unknown names are refused with a list of the known ones."""
    if name in BUILT_IN:
        raise DataError(f"{name} is built in and drawn when asked for: there are no files to look at")
    if name not in LAYOUTS:
        raise DataError(f"no data set called {name!r}; there are: {', '.join(DATASETS)}")
    return LAYOUTS[name]


def find_root(name: str, root: str | Path | None) -> Path:
    """The root as an existing folder, or an error."""
    if root is None:
        raise DataError(
            f"{name} is kept in files: say in which folder, data.root=FOLDER (in --data: {name}:FOLDER)"
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder for the data set {name}")
    return folder


def _chosen(name: str, split: str | None, splits: tuple[str, ...], anomaly_set: bool) -> str:
    if split is None and anomaly_set:
        return splits[0]
    if split not in splits:
        raise DataError(f"{name} has no split {split!r}; there are: {', '.join(splits) or 'none'}")
    return split
