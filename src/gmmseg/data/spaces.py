"""Class names, colours and raw ids of the known data sets, kept as JSON beside this module."""

import json
from functools import cache
from importlib.resources import files

from gmmseg.labels import LabelSpace


@cache
def load_label_space(name: str) -> LabelSpace:
    """The label space stored as ``label_spaces/<name>.json``."""
    folder = files("gmmseg.data") / "label_spaces"
    known = sorted(
        entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")
    )
    if name not in known:
        raise ValueError(f"no label space called {name!r}; there are: {', '.join(known)}")
    stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return LabelSpace(
        names=tuple(entry["name"] for entry in stored["classes"]),
        colours=tuple(
            (red, green, blue) for red, green, blue in (entry["colour"] for entry in stored["classes"])
        ),
        raw_to_train={int(raw): train for raw, train in stored.get("raw_to_train", {}).items()},
    )
