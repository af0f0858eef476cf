"""A data set of image and label files: what to read is a list of pairs, whoever found them."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.data.reading import DataError, read_ids, read_image
from gmmseg.labels import LabelSpace
from gmmseg.samples import Sample

NOTHING_LABELLED = (
    "no pixel has a label, all are to be ignored; label some, or correct the ids the label files hold"
)
NO_ANOMALY = (
    "no pixel is marked as an anomaly (1), so nothing can be evaluated; 255 means ignore: masks that are "
    "white on anomalies are turned into 0 and 1 by gmmseg data convert-masks"
)


@dataclass(frozen=True)
class Pair:
    """An image file, its label file, and what the label file's values mean."""

    image: Path
    labels: Path
    name: str
    encoding: LabelSpace


@dataclass
class Listing:
    """Pairs found for one split, what is amiss with the others, and the data set's version where it has
    several."""

    pairs: list[Pair] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    version: str | None = None

    def add(self, image: Path, labels: Path, name: str, encoding: LabelSpace) -> None:
        """Add a pair, or note which of its files is missing."""
        missing = [path for path in (image, labels) if not path.is_file()]
        self.problems += [f"{path}: missing, although {name} needs it" for path in missing]
        if not missing:
            self.pairs.append(Pair(image, labels, name, encoding))


def match(
    images: Iterable[Path], labels_of: Callable[[Path], Path], found: Iterable[Path], encoding: LabelSpace
) -> Listing:
    """Pair ``images`` with the label files ``labels_of`` names; label files ``found`` without an image are
    amiss."""
    listing, wanted = Listing(), set()
    for image in images:
        labels = labels_of(image)
        wanted.add(labels)
        listing.add(image, labels, image.stem, encoding)
    listing.problems += [f"{path}: a label file without an image" for path in sorted(set(found) - wanted)]
    return listing


def shared_stems(listing: Listing, folder: Path) -> list[str]:
    """A line for every name of several pairs: images of ``folder`` that differ in their suffix alone."""
    counts = Counter(pair.name for pair in listing.pairs)
    return [
        f"{folder}: several images share the stem {stem!r}" for stem in sorted(counts) if counts[stem] > 1
    ]


class PairedFiles(Dataset[Sample]):
    """Samples read from pairs of files. ``label_space`` is None where labels are anomaly masks."""

    def __init__(
        self,
        name: str,
        split: str,
        pairs: list[Pair],
        label_space: LabelSpace | None,
        version: str | None = None,
        root: Path | None = None,
    ) -> None:
        if not pairs:
            raise DataError(f"{name}: no images in split {split!r}")
        self.name, self.split, self.pairs = name, split, pairs
        self.label_space, self.version, self.root = label_space, version, root

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        pair = self.pairs[index]
        image, labels = torch.from_numpy(read_image(pair.image)), self.labels(index)
        if image.shape[:2] != labels.shape:
            raise DataError(
                f"{pair.image} is {image.shape[1]}x{image.shape[0]} but {pair.labels} is "
                f"{labels.shape[1]}x{labels.shape[0]}; both must have the same size"
            )
        return Sample(image.permute(2, 0, 1).contiguous(), labels, pair.name)

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample, without reading its image."""
        pair = self.pairs[index]
        return torch.from_numpy(pair.encoding.encode(read_ids(pair.labels), str(pair.labels)))

    def content(self) -> str:
        """Path, size and time of change of every image and label file, one a line."""
        paths = (path for pair in self.pairs for path in (pair.image, pair.labels))
        files = ((path.resolve(), path.stat()) for path in paths)
        return "".join(f"{path} {stat.st_size} {stat.st_mtime_ns}\n" for path, stat in files)
