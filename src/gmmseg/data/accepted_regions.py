"""Regions that `gmmseg predict --objects` has found and somebody has accepted as examples of a class."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.data.reading import DataError, read_image
from gmmseg.images import MAX_PIXELS
from gmmseg.json_tree import JSON
from gmmseg.labels import IGNORE
from gmmseg.samples import Sample

_AGAIN = "write it again with gmmseg predict --objects"


class AcceptedRegions(Dataset[Sample]):
    """The images of accepted regions: labels are 1 inside them and 0 elsewhere.

    Other unknown regions of these images may be of the class, too: they are IGNORE. ``images``: the folder
    that was predicted; ``objects``: the file objects.json; ``accepted``: ids of annotations in it.
    """

    name = "accepted regions"
    label_space = None

    def __init__(self, images: Path, objects: Path, accepted: Sequence[int]) -> None:
        self.root, self.split = objects, objects.stem
        annotations, files = _read(objects)
        _refuse_unknown(objects, accepted, {each["id"] for each in annotations})
        wanted = {each["image_id"] for each in annotations if each["id"] in accepted}
        self._files = [(images / name, name) for number, name in files.items() if number in wanted]
        self._regions = [
            [(each, each["id"] in accepted) for each in annotations if each["image_id"] == number]
            for number in files
            if number in wanted
        ]
        for path, name in self._files:
            if not path.is_file():
                raise DataError(
                    f"{objects}: {name} is no image of {images}; give the folder that was predicted "
                    "(of a video, save the frame as an image and predict that)"
                )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        path, name = self._files[index]
        image, labels = torch.from_numpy(read_image(path)), self.labels(index)
        if image.shape[:2] != labels.shape:
            raise DataError(
                f"{path} is {image.shape[1]}x{image.shape[0]} and was {labels.shape[1]}x{labels.shape[0]} in "
                f"{self.root}: {_AGAIN}"
            )
        return Sample(image.permute(2, 0, 1).contiguous(), labels, name)

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample."""
        found: NDArray[np.uint8] | None = None
        for region, accepted in sorted(self._regions[index], key=lambda each: each[1]):  # accepted ones last
            inside = self._decoded(region)
            found = np.zeros(inside.shape, np.uint8) if found is None else found
            if inside.shape != found.shape:
                raise self._damaged(region)
            found[inside] = 1 if accepted else IGNORE
        return torch.from_numpy(found)

    def _decoded(self, region: JSON) -> NDArray[np.bool_]:
        """The pixels (h w) of a region: COCO's run lengths, column by column, outside first."""
        try:
            height, width = region["segmentation"]["size"]
            counts = [int(each) for each in region["segmentation"]["counts"]]
            # Before memory is asked for, and in whole numbers, which do not overflow.
            if min(counts) < 0 or sum(counts) != height * width or height * width > MAX_PIXELS:
                raise ValueError("not the pixels of an image")
            flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
            return flat.reshape(width, height).T
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._damaged(region) from error

    def _damaged(self, region: JSON) -> DataError:
        return DataError(f"{self.root}: the pixels of object {region['id']} are damaged; {_AGAIN}")


def _read(objects: Path) -> tuple[list[JSON], dict[int, str]]:
    """The annotations of the file, and the names of its images by id."""
    try:
        tree = json.loads(objects.read_text(encoding="utf-8"))
        files = {int(each["id"]): str(each["file_name"]) for each in tree["images"]}
        annotations = [
            {"id": int(each["id"]), "image_id": int(each["image_id"]), "segmentation": each["segmentation"]}
            for each in tree["annotations"]
        ]
    except OSError as error:
        raise DataError(f"{objects}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{objects}: not an objects.json of gmmseg; {_AGAIN}") from error
    return annotations, files


def _refuse_unknown(objects: Path, accepted: Sequence[int], known: set[int]) -> None:
    if not accepted:
        raise DataError("no object is accepted: name their ids, such as --accept 3,7")
    missing = sorted(set(accepted) - known)
    if missing:
        what = f"they are 1 to {max(known)}" if known else "it holds none"
        raise DataError(f"{objects}: there is no object {', '.join(map(str, missing))}; {what}")
