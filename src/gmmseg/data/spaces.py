"""Class names, colours and raw ids of the known data sets, kept as JSON beside this module."""

import colorsys
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


def distinct_colours(count: int) -> tuple[tuple[int, int, int], ...]:
    """``count`` colours that are easy to tell apart, always the same ones."""
    golden = 0.61803398875
    colours = []
    for index in range(count):
        saturation, value = (0.55, 0.85, 1.0)[index % 3], (0.95, 0.7, 0.5)[index // 3 % 3]
        red, green, blue = colorsys.hsv_to_rgb(index * golden % 1, saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return tuple(colours)
