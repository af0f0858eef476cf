"""Masks of one class over images of anything: what a class is added from."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gmmseg.data.paired import Pair, PairedFiles
from gmmseg.data.reading import DataError, list_images, read_ids
from gmmseg.labels import IGNORE, LabelSpace

_NAMES, _COLOURS = ("other", "class"), ((0, 0, 0), (255, 255, 255))
ONES = LabelSpace(_NAMES, _COLOURS, {0: 0, 1: 1, IGNORE: IGNORE})
"""1 is the class, 0 is not, 255 is neither."""
UNKNOWN_MASKS = LabelSpace(_NAMES, _COLOURS, {0: 0, 255: 1})
"""255 is the class: the unknown masks that `gmmseg predict` writes."""
_RULE = (
    "a mask holds 1 where the class is and 0 elsewhere, or 255 and 0 as the unknown masks of gmmseg predict"
)


def open_class_masks(images: Path, masks: Path) -> PairedFiles:
    """Images with masks as samples: labels are 1 where the class is, 0 elsewhere, IGNORE where nobody knows.

    The mask of ``a.jpg`` is ``a.jpg.png`` or ``a.png``. Images without a mask are left out, masks without an
    image are refused. Values are of one kind in all files: 1 for the class (255 is ignored then), or 255.
    """
    pairs = _pairs(images, masks)
    values = {mask: frozenset(np.unique(read_ids(mask)).tolist()) for _, mask in pairs}
    encoding = _encoding(values)
    found = [Pair(image, mask, image.name, encoding) for image, mask in pairs]
    return PairedFiles("masks", masks.name, found, None, root=masks)


def images_without_mask(images: Path, dataset: PairedFiles) -> list[Path]:
    """The images of the folder that `open_class_masks` has left out."""
    used = {pair.image for pair in dataset.pairs}
    return [image for image in list_images(images) if image not in used]


def _pairs(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder")
    pictures, files = list_images(images), {path.name: path for path in list_images(masks)}
    if not pictures:
        raise DataError(f"{images}: there are no images in it")
    owners: dict[Path, list[Path]] = defaultdict(list)
    for image in pictures:
        names = dict.fromkeys((f"{image.name}.png", f"{image.stem}.png", image.name))
        found = [files[name] for name in names if name in files]
        if len(found) > 1:
            raise DataError(f"{image}: {_named(found)} could both be its mask; remove one of them")
        for mask in found:
            owners[mask].append(image)
    _refuse_unclear(images, masks, owners, files.values())
    return [(of[0], mask) for mask, of in sorted(owners.items(), key=lambda item: item[1][0].name)]


def _refuse_unclear(images: Path, masks: Path, owners: dict[Path, list[Path]], files: Iterable[Path]) -> None:
    if not owners:
        raise DataError(
            f"{masks}: no mask for any image of {images}; the mask of a.jpg is a.jpg.png or a.png"
        )
    for mask, of in owners.items():
        if len(of) > 1:
            raise DataError(
                f"{mask}: could be the mask of {_named(of)}; give it the whole name, {of[0].name}.png"
            )
    lonely = [path for path in files if path not in owners]
    if lonely:
        raise DataError(f"{_named(lonely)}: no image of that name in {images}; add it, or remove the mask")


def _named(paths: list[Path], most: int = 4) -> str:
    return ", ".join(map(str, paths[:most])) + (f" and {len(paths) - most} more" if len(paths) > most else "")


def _encoding(values: dict[Path, frozenset[int]]) -> LabelSpace:
    """What the values mean, in all files the same; DataError where they can mean two things, or nothing."""
    for mask, found in values.items():
        odd = sorted(found - {0, 1, IGNORE})
        if odd:
            raise DataError(f"{mask}: holds {', '.join(map(str, odd[:8]))}; {_RULE}")
    ones = [mask for mask, found in values.items() if 1 in found]
    full = [mask for mask, found in values.items() if IGNORE in found and 1 not in found]
    if ones and full:
        raise DataError(
            f"{ones[0]} holds 1 and {full[0]} only 255, which is the class in the one kind of mask "
            "and ignored in the other: use the same kind in all files"
        )
    if not ones and not full:
        raise DataError(f"{next(iter(values)).parent}: no pixel of its masks marks the class; {_RULE}")
    return ONES if ones else UNKNOWN_MASKS
