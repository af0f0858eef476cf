"""A newcomer's first minute with data: is everything there, readable, and labelled with values that mean
something?"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gmmseg.data.catalog import HUB_SETS, Layout, find_layout, find_root
from gmmseg.data.paired import NO_ANOMALY, NOTHING_LABELLED, Pair
from gmmseg.data.parquet import ParquetDataset, open_parquet, parquet_splits
from gmmseg.data.reading import DataError, read_ids, read_image
from gmmseg.labels import IGNORE, LabelError
from gmmseg.samples import Progress

SHOWN = 40
"""Problems a printed report lists; the report itself holds all."""


@dataclass
class SplitReport:
    """One split: pairs found, how many there should be, pixels per class (c,) and ignored, and what is
    amiss."""

    pairs: int
    official: int | None
    pixels: np.ndarray
    ignored: int = 0
    undefined: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    version: str | None = None


@dataclass
class CheckReport:
    """What ``check_dataset`` found; ``ok`` when nothing is amiss in any split. ``str()`` gives a table."""

    name: str
    root: Path
    classes: tuple[str, ...]
    splits: dict[str, SplitReport]
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.splits) and not self.all_problems

    @property
    def all_problems(self) -> list[str]:
        """Every problem of the data set and of its splits."""
        return self.problems + [problem for split in self.splits.values() for problem in split.problems]

    def __str__(self) -> str:
        lines = [f"{self.name} in {self.root}", *self._counts(), "", *self._shares(), ""]
        lines += [
            f"undefined label value {value}: {count} pixels" for value, count in self._undefined().items()
        ]
        count = len(self.all_problems)
        lines += [f"- {problem}" for problem in self.all_problems[:SHOWN]]
        lines += [f"- and {count - SHOWN} more"] if count > SHOWN else []
        lines.append("everything is in order" if self.ok else f"{count} problem{'s' if count != 1 else ''}")
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        lines = []
        for split, report in self.splits.items():
            known = f" of {report.official}" if report.official not in (None, report.pairs) else ""
            version = f" (version {report.version})" if report.version else ""
            lines.append(f"  {split}: {report.pairs}{known} pairs{version}")
        return lines

    def _shares(self) -> list[str]:
        """Class pixel shares in percent, one column a split; ignored pixels in percent of all pixels."""
        wide = max(map(len, (*self.classes, "(ignored)")))
        lines = [
            f"{'share of labelled pixels':{max(wide, 24)}}" + "".join(f"{name:>10}" for name in self.splits)
        ]
        wide = max(wide, 24)
        for train_id, name in enumerate(self.classes):
            cells = [
                _percent(report.pixels[train_id], report.pixels.sum()) for report in self.splits.values()
            ]
            lines.append(f"{name:{wide}}" + "".join(cells))
        cells = [
            _percent(report.ignored, report.ignored + report.pixels.sum()) for report in self.splits.values()
        ]
        lines.append(f"{'(ignored)':{wide}}" + "".join(cells))
        return lines

    def _undefined(self) -> dict[int, int]:
        total: dict[int, int] = {}
        for report in self.splits.values():
            for value, count in report.undefined.items():
                total[value] = total.get(value, 0) + count
        return dict(sorted(total.items()))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:9.2f}%" if whole else f"{'-':>10}"


def check_dataset(name: str, root: str | Path, progress: Progress | None = None) -> CheckReport:
    """Read every label map and open every image of a data set; all problems are collected, none stops the
    check."""
    if name in HUB_SETS:
        return _check_parquet(name, str(root), progress)
    layout, folder = find_layout(name), find_root(name, root)
    try:
        classes = layout.label_space(folder).names if layout.label_space else ("normal", "anomaly")
        found = {split: layout.listing(folder, split) for split in layout.splits(folder)}
    except DataError as error:
        return CheckReport(name, folder, (), {}, [str(error)])
    report, seen = CheckReport(name, folder, classes, {}), list[list[Pair]]()
    total, done = sum(len(listing.pairs) for listing in found.values()), 0
    for split, listing in found.items():
        if (not listing.pairs and not listing.problems) or listing.pairs in seen:
            continue  # a split that is not there, or another name of one already judged
        seen.append(listing.pairs)
        pixels = np.zeros(len(classes), np.int64)
        judged = SplitReport(len(listing.pairs), layout.official.get(split), pixels, version=listing.version)
        judged.problems += listing.problems
        for pair in listing.pairs:
            _judge(pair, judged)
            done += 1
            if progress:
                progress(done, total, pair.name)
        if listing.pairs and not judged.problems:
            judged.problems += _emptiness(judged, f"{folder}, split {split}", layout.label_space is None)
        report.splits[split] = judged
    if not report.splits:
        report.problems.append(f"{folder}: no images found; expected {_expectation(layout)}")
    return report


def _check_parquet(name: str, root: str, progress: Progress | None) -> CheckReport:
    """`check_dataset` for the rows of parquet files: every image and label map is decoded."""
    report = CheckReport(name, Path(root), (), {})
    try:
        for split in parquet_splits(root):
            dataset = open_parquet(name, root, split)
            report.classes = dataset.label_space.names
            report.splits[split] = _judge_rows(dataset, progress)
    except DataError as error:
        report.problems.append(str(error))
    return report


def _judge_rows(dataset: ParquetDataset, progress: Progress | None) -> SplitReport:
    count = len(dataset.label_space)
    report = SplitReport(len(dataset), None, np.zeros(count, np.int64))
    for index in range(len(dataset)):
        try:
            pixels = np.bincount(dataset[index].labels.numpy().ravel(), minlength=IGNORE + 1)
        except (DataError, LabelError) as error:
            report.problems.append(str(error))
            continue
        report.pixels += pixels[:count]
        report.ignored += int(pixels[IGNORE])
        if progress:
            progress(index + 1, len(dataset), dataset.name_of(index))
    if not report.problems:
        report.problems += _emptiness(report, f"{dataset.root}, split {dataset.split}", False)
    return report


def _emptiness(report: SplitReport, where: str, anomaly_set: bool) -> list[str]:
    """What is amiss with a split whose files are all in order and say nothing."""
    if not report.pixels.any():
        return [f"{where}: {NOTHING_LABELLED}"]
    if anomaly_set and not report.pixels[1]:
        return [f"{where}: {NO_ANOMALY}"]
    return []


def _expectation(layout: Layout) -> str:
    return (layout.listing.__doc__ or "").strip()


def _judge(pair: Pair, report: SplitReport) -> None:
    """Add one pair's pixels to the report, or what is wrong with it."""
    try:
        ids = read_ids(pair.labels)
    except DataError as error:
        report.problems.append(str(error))
        ids = None
    size = _image_size(pair.image, report)
    if ids is None:
        return
    if size is not None and size != ids.shape[::-1]:
        report.problems.append(
            f"{pair.image}: is {size[0]}x{size[1]} but its labels are {ids.shape[1]}x{ids.shape[0]}"
        )
    undefined = {}
    for value, count in zip(*np.unique(ids, return_counts=True)):
        train_id = pair.encoding.defined.get(int(value))
        if train_id is None:
            undefined[int(value)] = int(count)
        elif train_id < len(report.pixels):
            report.pixels[train_id] += count
        else:
            report.ignored += int(count)
    if undefined:
        listed = ", ".join(f"{value} ({count} pixels)" for value, count in undefined.items())
        report.problems.append(f"{pair.labels}: undefined label values {listed}")
        for value, count in undefined.items():
            report.undefined[value] = report.undefined.get(value, 0) + count


def _image_size(path: Path, report: SplitReport) -> tuple[int, int] | None:
    """(width, height) of an image that training can read: all of it is decoded, as training would."""
    try:
        height, width, _ = read_image(path).shape
    except DataError as error:
        report.problems.append(str(error))
        return None
    return width, height
