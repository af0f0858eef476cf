"""Unknown objects of many images and videos, as one file objects.json and pictures with boxes."""

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from gmmseg import distributed
from gmmseg.atomic import write_bytes
from gmmseg.inference.coco_objects import ImageObjects, annotation, coco_tree
from gmmseg.inference.inputs import Input
from gmmseg.inference.objects import UnknownObject, unknown_objects
from gmmseg.inference.pictures import with_boxes
from gmmseg.inference.prediction import Prediction
from gmmseg.inference.tracking import ObjectTracker

OBJECTS_FILE = "objects.json"


class ObjectFiles:
    """Collects the objects of predictions; in a video an object keeps its id.

    ``class_names``: of the model's classes, numbers stand for them without; ``min_area``: as in
    `unknown_objects`.
    """

    def __init__(self, class_names: Sequence[str] | None = None, *, min_area: int | None = None) -> None:
        self.class_names, self.min_area = class_names, min_area
        self._images: dict[str, list[ImageObjects]] = {}
        self._tracker = ObjectTracker()

    def add(self, item: Input, name: str, prediction: Prediction, picture: Image.Image) -> Image.Image:
        """Take in the image or the next frame ``name`` of ``item``; ``picture`` with boxes comes back."""
        if item.name not in self._images:
            self._tracker = ObjectTracker()
        found = unknown_objects(prediction, min_area=self.min_area)
        height, width = prediction.anomaly.shape
        entries = [annotation(each, (height, width), self.class_names) for each in found]
        boxes = [each.box for each in found]
        ids = self._tracker.step(boxes) if item.is_video else None
        if ids is not None:
            entries = [{**entry, "track_id": number} for entry, number in zip(entries, ids)]
        image = ImageObjects(name, (height, width), tuple(entries), item.name if item.is_video else None)
        self._images.setdefault(item.name, []).append(image)
        numbers = [None] * len(found) if ids is None else ids
        captions = [self._caption(*pair) for pair in zip(found, numbers)]
        return with_boxes(picture, boxes, captions)

    def _caption(self, each: UnknownObject, number: int | None) -> str:
        strange = f"{each.peak:.3g}" if each.p_value is None else f"p {each.p_value:.2g}"
        return strange if number is None else f"#{number} {strange}"

    def write(self, folder: Path, names: Sequence[str]) -> None:
        """Write objects.json, whole or not at all, with the inputs in the order of ``names``.

        With several processes the first one writes what all have found.
        """
        parts = distributed.gather_objects(self._images)
        if distributed.rank() == 0:
            everything = {name: images for part in parts for name, images in part.items()}
            in_order = [image for name in names for image in everything.get(name, [])]
            text = json.dumps(coco_tree(in_order), allow_nan=False)
            write_bytes(folder / OBJECTS_FILE, (text + "\n").encode())
