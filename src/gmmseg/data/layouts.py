"""Where each closed-set data set keeps its files."""

from pathlib import Path

from gmmseg.data.class_list import read_classes
from gmmseg.data.paired import Listing, match, shared_stems
from gmmseg.data.reading import DataError, list_images
from gmmseg.data.spaces import load_label_space
from gmmseg.labels import IGNORE, LabelSpace


def cityscapes(root: Path, split: str) -> Listing:
    """``leftImg8bit/<split>/<city>/``, ``gtFine/<split>/<city>/``; train ids where present, else label
    ids."""
    raw = load_label_space("cityscapes")
    trained = LabelSpace(raw.names, raw.colours)
    listing, wanted = Listing(), set()
    if split == "test" and not (root / "gtFine" / "test").is_dir():
        return listing  # its labels are not public
    for image in sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.png")):
        stem = image.name.removesuffix("_leftImg8bit.png")
        folder = root / "gtFine" / split / image.parent.name
        train_ids = folder / f"{stem}_gtFine_labelTrainIds.png"
        label_ids = folder / f"{stem}_gtFine_labelIds.png"
        wanted.add(stem)
        if train_ids.is_file():
            listing.add(image, train_ids, stem, trained)
        else:
            listing.add(image, label_ids, stem, raw)
    for path in sorted((root / "gtFine" / split).glob("*/*_gtFine_labelIds.png")):
        if path.name.removesuffix("_gtFine_labelIds.png") not in wanted:
            listing.problems.append(f"{path}: a label file without an image")
    return listing


def ade20k(root: Path, split: str) -> Listing:
    """``images`` and ``annotations``, each with ``training`` and ``validation``; also from the folder
    above."""
    root = _inside(root, "ADEChallengeData2016")
    folder = {"train": "training", "val": "validation"}[split]
    labels = root / "annotations" / folder
    return match(
        list_images(root / "images" / folder),
        lambda image: labels / f"{image.stem}.png",
        list_images(labels),
        load_label_space("ade20k"),
    )


def coco_stuff_10k(root: Path, split: str) -> Listing:
    """``images`` and ``annotations``, each with ``train2014`` and ``test2014``; labels as converted."""
    folder = {"train": "train2014", "val": "test2014", "test": "test2014"}[split]
    labels = root / "annotations" / folder
    listing = match(
        list_images(root / "images" / folder),
        lambda image: labels / f"{image.stem}_labelTrainIds.png",
        labels.glob("*_labelTrainIds.png"),
        load_label_space("coco_stuff_10k"),
    )
    if not listing.pairs and any((root / "annotations").glob("*.mat")):
        listing.problems.insert(
            0,
            f"{root / 'annotations'}: holds raw .mat files; convert them with gmmseg.data.coco_stuff.convert",
        )
    return listing


def camvid(root: Path, split: str) -> Listing:
    """``images/<split>`` and ``labels/<split>``, or the older ``<split>`` and ``<split>annot`` with 11 as
    void."""
    space = load_label_space("camvid")
    images, labels = root / "images" / split, root / "labels" / split
    if not (root / "images").is_dir() and (root / f"{split}annot").is_dir():
        images, labels = root / split, root / f"{split}annot"
        space = LabelSpace(space.names, space.colours, {**space.defined, len(space): IGNORE})
    return match(list_images(images), lambda image: labels / f"{image.stem}.png", list_images(labels), space)


def folder(root: Path, split: str) -> Listing:
    """``images/<split>`` and ``labels/<split>`` with the same stems; class names in ``classes.txt``."""
    labels = root / "labels" / split
    listing = match(
        list_images(root / "images" / split),
        lambda image: labels / f"{image.stem}.png",
        list_images(labels),
        folder_label_space(root),
    )
    listing.problems += shared_stems(listing, root / "images" / split)
    return listing


def folder_splits(root: Path) -> tuple[str, ...]:
    """Names of the folders under ``images``."""
    images = root / "images"
    return tuple(sorted(path.name for path in images.iterdir() if path.is_dir())) if images.is_dir() else ()


def folder_label_space(root: Path) -> LabelSpace:
    """The classes that ``classes.txt`` lists."""
    path = root / "classes.txt"
    if not path.is_file():
        raise DataError(
            f"{path}: missing; write the class names into it, one a line, in the order of their ids"
        )
    return read_classes(path)


def _inside(root: Path, name: str) -> Path:
    return root / name if (root / name).is_dir() else root
