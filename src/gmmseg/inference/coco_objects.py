"""Unknown objects as a JSON file in the form of COCO: images, annotations, categories."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gmmseg.inference.objects import UnknownObject
from gmmseg.json_tree import JSON

UNKNOWN_CATEGORY = 1
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ImageObjects:
    """The objects of one image, or of one frame (``video`` then names its file), as entries of the file.

    ``annotations`` lack the ids that are given when the file is put together; ``track_id`` counts within the
    video.
    """

    file_name: str
    size: tuple[int, int]
    annotations: tuple[JSON, ...]
    video: str | None = None


def annotation(each: UnknownObject, size: tuple[int, int], class_names: Sequence[str] | None) -> JSON:
    """One entry of ``annotations`` for an object of an image of ``size`` (height, width), without ids."""
    return {
        "category_id": UNKNOWN_CATEGORY,
        "bbox": list(each.box),
        "area": each.area,
        "segmentation": run_lengths(each, size),
        "iscrowd": 0,
        "peak_score": _finite(each.peak),
        "mean_score": _finite(each.mean),
        "p_value": each.p_value,
        "nearest_class": each.nearest_class if class_names is None else class_names[each.nearest_class],
    }


def run_lengths(each: UnknownObject, size: tuple[int, int]) -> JSON:
    """The pixels of an object in an image of ``size`` (height, width) as COCO's uncompressed run lengths.

    Column by column from the top left: so many pixels outside, so many inside, and so on.
    """
    left, top, width, height = each.box
    columns = np.zeros((width, size[0]), bool)
    columns[:, top : top + height] = each.mask.T
    flat: NDArray[np.bool_] = columns.ravel()
    edges = np.flatnonzero(np.diff(flat.astype(np.int8), prepend=0, append=0)) + left * size[0]
    ends = [*edges.tolist(), size[0] * size[1]]
    counts = np.diff([0, *(ends if ends[-1] > ends[-2] else ends[:-1])])
    return {"size": list(size), "counts": counts.tolist()}


def _finite(score: float) -> float:
    """The score, or the largest number in place of infinity, which JSON does not know."""
    return min(max(score, -_LARGEST), _LARGEST)


def coco_tree(images: Iterable[ImageObjects]) -> JSON:
    """What objects.json holds. Ids of images, annotations and tracks count from 1 through the whole file."""
    entries: list[JSON] = []
    annotations: list[JSON] = []
    tracks: dict[tuple[str, int], int] = {}
    for image_id, image in enumerate(images, 1):
        height, width = image.size
        entries.append({"id": image_id, "file_name": image.file_name, "height": height, "width": width})
        for each in image.annotations:
            entry = {"id": len(annotations) + 1, "image_id": image_id, **each}
            if image.video is not None:
                key = (image.video, each["track_id"])
                entry["track_id"] = tracks.setdefault(key, len(tracks) + 1)
            annotations.append(entry)
    categories = [{"id": UNKNOWN_CATEGORY, "name": "unknown", "supercategory": "unknown"}]
    return {"images": entries, "annotations": annotations, "categories": categories}
