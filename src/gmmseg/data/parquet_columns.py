"""Which column of a table holds images and which their label maps, by what is stored in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gmmseg.data.reading import MAX_PIXELS, DataError
from gmmseg.images import open_encoded

if TYPE_CHECKING:
    from datasets import Features

WHOLE_NUMBERS = ("int", "uint")


@dataclass(frozen=True)
class Columns:
    """Names of the columns of images and of their label maps."""

    image: str
    labels: str


def find_columns(
    features: "Features", row: Mapping[str, object], given: tuple[str, str] | None, place: str
) -> Columns:
    """The columns that are ``given``, or those that can be meant; DataError where that is not sure.

    A label map is lists of whole numbers, or the one of two images in ``row`` that has a single channel.
    """
    if given is not None:
        unknown = [name for name in given if name not in features]
        if unknown:
            raise DataError(f"{place}: no column {unknown[0]!r}; there are: {', '.join(features)}")
        return Columns(*given)
    pictures = [name for name, feature in features.items() if _holds_images(feature)]
    maps = [name for name, feature in features.items() if _holds_label_maps(feature)]
    if len(maps) == 1 and len(pictures) == 1:
        return Columns(pictures[0], maps[0])
    if not maps and len(pictures) == 2:
        single = [name for name in pictures if _has_one_channel(row[name], f"{place}, column {name}")]
        if len(single) == 1:
            (image,) = set(pictures) - set(single)
            return Columns(image, single[0])
    raise DataError(
        f"{place}: it is not clear which column holds the images and which the label maps (columns: "
        f"{', '.join(features)}); say it behind the name: {place}@IMAGE,LABELS"
    )


def class_names(feature: object) -> tuple[str, ...]:
    """The names that a column of label maps gives its ids; none where it gives none."""
    from datasets import ClassLabel

    inner = _innermost(feature)[0]
    return tuple(inner.names) if isinstance(inner, ClassLabel) else ()


def content_of(value: object, source: str) -> bytes:
    """The content of the image file that a cell holds."""
    stored = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(stored, bytes):
        return stored
    named = f" ({value['path']})" if isinstance(value, dict) and value.get("path") else ""
    raise DataError(f"{source}: holds no image{named}; the files of a set must contain its images")


def _holds_images(feature: object) -> bool:
    from datasets import Image, Value

    if isinstance(feature, Value):
        return feature.dtype in ("binary", "large_binary")
    return isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)


def _holds_label_maps(feature: object) -> bool:
    from datasets import Array2D, ClassLabel, Value

    if isinstance(feature, Array2D):
        return feature.dtype.startswith(WHOLE_NUMBERS)
    inner, depth = _innermost(feature)
    whole = isinstance(inner, ClassLabel) or (
        isinstance(inner, Value) and inner.dtype.startswith(WHOLE_NUMBERS)
    )
    return depth == 2 and whole


def _innermost(feature: object) -> tuple[object, int]:
    """What lists of lists hold, and how deep they are."""
    from datasets import LargeList, List

    depth = 0
    while isinstance(feature, List | LargeList):
        feature, depth = feature.feature, depth + 1
    return feature, depth


def _has_one_channel(value: object, source: str) -> bool:
    try:
        with open_encoded(content_of(value, source), source, max_pixels=MAX_PIXELS) as image:
            return len(image.getbands()) == 1
    except DataError:
        raise
    except Exception as error:  # decoders fail in every way there is
        raise DataError(f"{source}: cannot be read as an image ({error})") from error
