"""What a saved segmenter says of its network: enough to build it again, with random weights."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from gmmseg.json_tree import JSON

Recipe = TypedDict(
    "Recipe",
    {
        # Of every recipe: which builder it is for, and what the head is made of.
        "source": str,
        "num_classes": int,
        "head": JSON,
        # Of converted networks: what their images are normalised with, and where they were taken apart.
        "mean": Sequence[float],
        "std": Sequence[float],
        "classifier": str | None,
        # Of a name in the zoo, in timm or in torchvision.
        "name": str,
        "classes": int,
        "auxiliary": bool,
        # Of a class of transformers or segmentation-models-pytorch.
        "class": str,
        "config": JSON,
        # Of the reference project.
        "backbone": JSON,
        "channels": int,
    },
    total=False,
)
"""Each source of networks writes and reads some of these; the file is config.json."""


def network_name(recipe: Recipe | JSON | None) -> str:
    """What people call the network of a recipe."""
    named = ((recipe or {}).get(key) for key in ("name", "backbone", "source"))
    return str(next((name for name in named if name), "a network assembled by hand"))


def with_classes(recipe: Recipe, names: Sequence[str]) -> Recipe:
    """The recipe of the same network made for the classes ``names`` from the start."""
    change = _CHANGES.get(str(recipe.get("source")), lambda recipe, names: {})
    return {**recipe, **change(recipe, names), "num_classes": len(names)}


def _change_transformers(recipe: Recipe, names: Sequence[str]) -> Recipe:
    labels = {str(place): name for place, name in enumerate(names)}
    config = {
        **recipe["config"],
        "id2label": labels,
        "label2id": {name: int(i) for i, name in labels.items()},
    }
    config.pop("num_labels", None)
    return {"config": config}


_CHANGES: dict[str, Callable[[Recipe, Sequence[str]], Recipe]] = {
    "transformers": _change_transformers,
    "smp": lambda recipe, names: {"config": {**recipe["config"], "classes": len(names)}},
    "torchvision": lambda recipe, names: {"classes": len(names)},
}
"""What a recipe says about classes apart from their number, by its source."""
