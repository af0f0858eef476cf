"""Where each anomaly data set keeps its files, and what its mask values mean: 0 normal, 1 anomaly, IGNORE."""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from gmmseg.data.paired import Listing, match, shared_stems
from gmmseg.data.reading import DataError, list_images
from gmmseg.labels import IGNORE, LabelSpace

_NAMES, _COLOURS = ("normal", "anomaly"), ((0, 0, 0), (255, 80, 0))
BINARY = LabelSpace(_NAMES, _COLOURS)
ROAD_ANOMALY = LabelSpace(_NAMES, _COLOURS, {0: 0, 2: 1})
LOST_AND_FOUND = LabelSpace(_NAMES, _COLOURS, {0: IGNORE, 1: 0, **dict.fromkeys(range(2, 201), 1)})


def fishyscapes_lost_and_found(root: Path, split: str) -> Listing:
    """Masks ``NNNN_<id>_labels.png`` and Lost and Found images ``<id>_leftImg8bit.png``, anywhere below
    ``root``."""
    images = {path.name.removesuffix("_leftImg8bit.png"): path for path in root.rglob("*_leftImg8bit.png")}
    listing = Listing()
    for mask in sorted(root.rglob("*_labels.png"), key=lambda path: path.name):
        numbered = re.fullmatch(r"\d{4}_(.+)_labels\.png", mask.name)
        if numbered is None:
            listing.problems.append(f"{mask}: a mask must be called NNNN_<Lost and Found id>_labels.png")
            continue
        name = numbered[1]
        image = images.get(name, root / f"{name}_leftImg8bit.png")
        listing.add(image, mask, mask.name.removesuffix("_labels.png"), BINARY)
    return listing


def fishyscapes_static(root: Path, split: str) -> Listing:
    """``<name>_labels.png`` beside ``<name>_rgb.jpg`` (or ``.png``), anywhere below ``root``."""
    listing = Listing()
    masks = sorted(root.rglob("*_labels.png"))
    for mask in masks:
        name = mask.name.removesuffix("_labels.png")
        found = [mask.with_name(f"{name}_rgb{suffix}") for suffix in (".jpg", ".png", ".webp")]
        image = next((path for path in found if path.is_file()), found[0])
        listing.add(image, mask, name, BINARY)
    listing.version = _version(root, masks)
    return listing


def _version(root: Path, masks: Iterable[Path]) -> str:
    """The release a folder on the way calls itself (``..._v2``), and a digest of the masks, which never
    lies."""
    masks = list(masks)
    folders = (masks[0].parent if masks else root).resolve().parts
    named = [found[0] for part in folders if (found := re.search(r"(?<![a-z])v\d+", part.lower()))]
    digest = hashlib.sha256()
    for mask in masks:
        digest.update(mask.name.encode() + b"\0" + mask.read_bytes())
    return f"{named[-1] if named else 'unnamed'}, {len(masks)} masks, sha256 {digest.hexdigest()[:12]}"


def road_anomaly(root: Path, split: str) -> Listing:
    """``frame_list.json`` names files of ``frames``; masks are
    ``frames/<name>.labels/labels_semantic.png``."""
    path = root / "frame_list.json"
    if not path.is_file():
        raise DataError(f"{path}: missing; ROOT must be the folder that holds frame_list.json and frames")
    try:
        frames = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not valid JSON ({error}); fetch it again") from error
    if not isinstance(frames, list) or not all(isinstance(frame, str) and frame for frame in frames):
        raise DataError(f"{path}: must be a list of file names; fetch it again")
    listing = Listing()
    for frame in frames:
        image = root / "frames" / frame
        if image.suffix.lower() not in {".jpg", ".webp", ".png"}:
            found = [image.with_name(image.name + suffix) for suffix in (".jpg", ".webp")]
            image = next((candidate for candidate in found if candidate.is_file()), found[0])
        mask = image.with_suffix(".labels") / "labels_semantic.png"
        listing.add(image, mask, image.stem, ROAD_ANOMALY)
    return listing


def segment_me_anomaly(root: Path, split: str) -> Listing:
    """``images`` and ``labels_masks/*_labels_semantic.png`` (RoadAnomaly21); test masks are not public."""
    return _segment_me(_track(root, "dataset_AnomalyTrack"), split)


def segment_me_obstacle(root: Path, split: str) -> Listing:
    """``images`` and ``labels_masks/*_labels_semantic.png`` (RoadObstacle21); test masks are not public."""
    return _segment_me(_track(root, "dataset_ObstacleTrack"), split)


def _track(root: Path, name: str) -> Path:
    return root / name if (root / name).is_dir() else root


def _segment_me(root: Path, split: str) -> Listing:
    """Validation images are called ``validation*``, all others are the test; empty without test masks."""
    listing = Listing()
    for image in list_images(root / "images"):
        if image.stem.startswith("validation") == (split == "val"):
            mask = root / "labels_masks" / f"{image.stem}_labels_semantic.png"
            listing.add(image, mask, image.stem, BINARY)
    return Listing() if split == "test" and not listing.pairs else listing


WHOLE = "test"
"""The split of an `anomaly_folder` without splits."""


def anomaly_folder(root: Path, split: str) -> Listing:
    """``images/*`` and ``masks/*.png`` with the same stems, holding 0, 1 and 255; or ``images/<split>/*`` and
    ``masks/<split>/*.png``."""
    images, masks = root / "images", root / "masks"
    if _folders(images):
        images, masks = images / split, masks / split
    listing = match(
        list_images(images), lambda image: masks / f"{image.stem}.png", list_images(masks), BINARY
    )
    listing.problems += shared_stems(listing, images)
    return listing


def anomaly_folder_splits(root: Path) -> tuple[str, ...]:
    """Names of the folders under ``images``; without any, WHOLE is the one split there is."""
    images = root / "images"
    folders = _folders(images)
    loose = list_images(images)
    if folders and loose:
        raise DataError(
            f"{images}: holds folders, which are splits ({folders[0]}), and images beside them "
            f"({loose[0].name}); move the images into a folder"
        )
    return folders or (WHOLE,)


def _folders(images: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in images.iterdir() if path.is_dir())) if images.is_dir() else ()


def lost_and_found(root: Path, split: str) -> Listing:
    """``leftImg8bit/<split>/<sequence>/`` and ``gtCoarse/<split>/<sequence>/*_gtCoarse_labelIds.png``."""
    listing = Listing()
    for image in sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.png")):
        name = image.name.removesuffix("_leftImg8bit.png")
        mask = root / "gtCoarse" / split / image.parent.name / f"{name}_gtCoarse_labelIds.png"
        listing.add(image, mask, name, LOST_AND_FOUND)
    return listing
