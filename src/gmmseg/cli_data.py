"""Data sets as commands are given them: NAME:ROOT[:SPLIT]."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gmmseg.samples import FingerprintedDataset


def open_data(spec: str, default_split: str | None = None) -> "FingerprintedDataset":
    """The data set of NAME:ROOT[:SPLIT]; the built-in scenes are NAME[::SPLIT]."""
    from gmmseg.data import open_dataset

    name, _, rest = spec.partition(":")
    root, _, split = rest.rpartition(":") if ":" in rest else (rest, "", "")
    chosen = split or default_split or (None if _is_anomaly_set(name) else "val")
    return open_dataset(name, os.path.expanduser(root) or None, chosen)


def _is_anomaly_set(name: str) -> bool:
    from gmmseg.data.catalog import LAYOUTS

    return name == "scenes_anomaly" or (name in LAYOUTS and LAYOUTS[name].label_space is None)
