"""COCO-Stuff 10k from its raw release (v1.1): one ``.mat`` file per image becomes one label PNG.

The raw ids are 1..182 with eleven gaps, 0 is unlabelled. The 164k release numbers its classes differently:
its files must not go through this table.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from gmmseg.atomic import write_atomically, write_bytes
from gmmseg.data.reading import DataError
from gmmseg.samples import Progress

GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91)
"""Raw ids that name no class."""


def stored_ids() -> dict[int, int]:
    """Raw id -> id in the label PNG: 0 stays unlabelled, the 171 classes become 1..171 in the same order."""
    return {raw: stored for stored, raw in enumerate(raw for raw in range(183) if raw not in GAPS)}


def convert(raw: Path, output: Path, progress: Progress | None = None) -> dict[str, int]:
    """Convert the raw release in ``raw`` into the layout of the data set ``coco_stuff_10k`` in ``output``.

    Reads ``imageLists/{train,test}.txt``, ``images/*.jpg`` and ``annotations/*.mat``; returns how many
    pairs each split got. Files that are there already are written again only if they are missing, so an
    interrupted run continues.
    """
    lists = {split: _names(raw / "imageLists" / f"{split}.txt") for split in ("train", "test")}
    total, done = sum(map(len, lists.values())), 0
    for split, names in lists.items():
        for name in names:
            _convert_pair(raw, output, f"{split}2014", name)
            done += 1
            if progress:
                progress(done, total, name)
    return {split: len(names) for split, names in lists.items()}


def read_mat(path: Path) -> np.ndarray:
    """Label PNG ids (h w) uint8 of one raw annotation."""
    from scipy.io import loadmat  # a second of import that only this conversion needs

    try:
        fields = loadmat(path, variable_names=["S"])
        raw = np.asarray(fields["S"]) if "S" in fields else None
        inside = None if raw is None else raw.astype(np.int64).clip(0, 255)
    except Exception as error:  # a damaged file makes the reader fail in a dozen ways
        raise DataError(f"{path}: cannot be read as a .mat file ({error}); fetch it again") from error
    if raw is None or inside is None or raw.ndim != 2:
        raise DataError(f"{path}: has no field S (h w); is it a COCO-Stuff 10k annotation?")
    table = np.full(256, 255, np.uint8)
    for raw_id, stored in stored_ids().items():
        table[raw_id] = stored
    wrong = raw[(table[inside] == 255) | (inside != raw)]
    if wrong.size:
        values = ", ".join(str(value) for value in np.unique(wrong)[:8])
        raise DataError(f"{path}: holds ids COCO-Stuff 10k does not define: {values}")
    return table[inside]


def _convert_pair(raw: Path, output: Path, folder: str, name: str) -> None:
    image = output / "images" / folder / f"{name}.jpg"
    labels = output / "annotations" / folder / f"{name}_labelTrainIds.png"
    if not image.is_file():
        source = raw / "images" / f"{name}.jpg"
        if not source.is_file():
            raise DataError(f"{source}: missing, although the image lists name it")
        write_bytes(image, source.read_bytes())
    if not labels.is_file():
        ids = Image.fromarray(read_mat(raw / "annotations" / f"{name}.mat"))
        write_atomically(labels, lambda file: ids.save(file, format="PNG"))


def _names(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"{path}: missing; ROOT must be the unpacked COCO-Stuff 10k v1.1 release")
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error}); fetch it again") from error
    odd = [name for name in names if Path(name).name != name]
    if odd:
        raise DataError(f"{path}: names files outside the release, such as {odd[0]!r}; fetch it again")
    return names
