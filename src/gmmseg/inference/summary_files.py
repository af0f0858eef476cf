"""What was predicted, one line per image: summary.csv for tables, summary.json for programs."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gmmseg.inference.image_maps import ImageMaps, Meaning
from gmmseg.json_tree import JSON


@dataclass(frozen=True)
class ImageRow:
    """One image or frame: its ``name``, what its files are called (``output``), its size, the share of
    unknown pixels (None without a threshold), the largest anomaly score (None: infinite), the shares of the
    classes in it, the largest first, and the seconds of the network.
    """

    name: str
    output: str
    width: int
    height: int
    unknown_share: float | None
    largest_score: float | None
    classes: dict[str, float]
    seconds: float

    @property
    def strangeness(self) -> tuple[float, float]:
        """What images are ordered by: the share of unknown pixels, then the largest score."""
        largest = math.inf if self.largest_score is None else self.largest_score
        return self.unknown_share or 0.0, largest


def image_row(name: str, output: str, maps: ImageMaps, seconds: float) -> ImageRow:
    """The line of one image."""
    height, width = maps.labels.shape
    unknown, largest = maps.unknown, float(maps.anomaly.max())
    return ImageRow(
        name,
        output,
        width,
        height,
        None if unknown is None else float(unknown.mean()),
        largest if math.isfinite(largest) else None,
        {maps.meaning.names[label]: round(share, 6) for label, share in maps.class_shares.items()},
        round(seconds, 6),
    )


def summary_csv(rows: Sequence[ImageRow]) -> bytes:
    """A table with a line for each image; classes are separated by semicolons."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ImageRow.__dataclass_fields__)
    for row in rows:
        cells = {**vars(row), "classes": ";".join(row.classes)}
        writer.writerow("" if value is None else value for value in cells.values())
    return text.getvalue().encode(errors="replace")


def summary_json(rows: Sequence[ImageRow], meaning: Meaning, failed: Sequence[tuple[str, str]]) -> bytes:
    """The same as one object, each image on a line, with score, threshold, classes and files not done."""
    known = None if meaning.given_threshold is not None else meaning.calibration
    about: JSON = {
        "score": meaning.score,
        "threshold": meaning.threshold,
        "promise": None if known is None else known.promise_text(),
        "classes": list(meaning.names),
        "failed": [{"name": name, "reason": reason} for name, reason in failed],
    }
    head = json.dumps(about, indent=2, allow_nan=False)[:-2]
    lines = ",\n".join(f"    {json.dumps(vars(row), allow_nan=False)}" for row in rows)
    return f'{head},\n  "images": [\n{lines}\n  ]\n}}\n'.encode()
