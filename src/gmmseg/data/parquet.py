"""Data sets of the Hugging Face hub, or of a folder of parquet files: an image and a label map in every row.

`hf` lets the library `datasets` copy the rows to its cache once, from where they are read without filling
the memory. `hf_stream` copies nothing: rows are read out of the parquet files, wherever those are.
"""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gmmseg.class_colours import default_colours
from gmmseg.data.class_list import read_classes
from gmmseg.data.parquet_columns import Columns, class_names, content_of, find_columns
from gmmseg.data.reading import DataError, decode_ids, decode_image
from gmmseg.hub_access import HubError, fetching
from gmmseg.labels import IGNORE, LabelError, LabelSpace
from gmmseg.samples import Sample

if TYPE_CHECKING:
    from datasets import DatasetBuilder, Features
    from pyarrow import Table

INSTALL = "pip install 'gmmseg[datasets]'"
KEPT_GROUPS = 2
"""Row groups of parquet files that `StreamedRows` keeps in memory."""


class Rows(Protocol):
    """Rows by index: what each holds by the name of its column, images as they are stored."""

    @property
    def features(self) -> "Features": ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Mapping[str, object]: ...


class ParquetDataset(Dataset[Sample]):
    """Samples of rows. ``files`` are what the rows come from: paths, or addresses with their revision."""

    def __init__(
        self,
        name: str,
        split: str,
        root: Path,
        rows: Rows,
        columns: Columns,
        label_space: LabelSpace,
        files: list[str],
    ) -> None:
        self.name, self.split, self.root, self.files = name, split, root, files
        self.rows, self.columns, self.label_space = rows, columns, label_space

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        row, source = self.rows[index], self._source(index)
        image = torch.from_numpy(decode_image(content_of(row[self.columns.image], source), source))
        labels = self._labels(row, source)
        if image.shape[:2] != labels.shape:
            raise DataError(
                f"{source}: the image is {image.shape[1]}x{image.shape[0]}, its labels are "
                f"{labels.shape[1]}x{labels.shape[0]}; both must have the same size"
            )
        return Sample(image.permute(2, 0, 1).contiguous(), labels, self.name_of(index))

    def labels(self, index: int) -> Tensor:
        """Labels (h w) uint8 of one sample, without decoding its image."""
        return self._labels(self.rows[index], self._source(index))

    def name_of(self, index: int) -> str:
        """What the sample at ``index`` is called."""
        return f"{self.split}_{index:06d}"

    def content(self) -> str:
        """Path, size and time of change of every file, or its address on the hub, one a line."""
        return "".join(f"{_state_of(file)}\n" for file in self.files)

    def _labels(self, row: Mapping[str, object], source: str) -> Tensor:
        value = row[self.columns.labels]
        ids = (
            _nested(value, source)
            if isinstance(value, list)
            else decode_ids(content_of(value, source), source)
        )
        return torch.from_numpy(self.label_space.encode(ids, source))

    def _source(self, index: int) -> str:
        return f"{self.root}, {self.split}, row {index}"


def _nested(value: list[object], source: str) -> np.ndarray:
    """Ids (h w) of lists of whole numbers, one list a line of pixels."""
    try:
        ids = np.asarray(value)
    except ValueError as error:
        raise LabelError(f"{source}: the lines of its label map differ in length") from error
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise LabelError(f"{source}: a label map is lines of whole ids, got {ids.dtype} of shape {ids.shape}")
    return ids


def _state_of(file: str) -> str:
    path = Path(file)
    if not path.is_file():
        return file  # an address on the hub, which names the commit
    stat = path.stat()
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"


class StreamedRows:
    """Rows of parquet ``files``, read in their row groups as they are asked for; the last few are kept.

    Only the footers are read at the start. In order, each group is read once; in random order, one group for
    most rows: files with small groups are then the faster ones.
    """

    def __init__(self, files: list[str]) -> None:
        import fsspec
        import pyarrow.parquet
        from datasets import Features

        self.files, self.footers = files, []
        for file in files:
            with fsspec.open(file, "rb") as opened:
                self.footers.append(pyarrow.parquet.read_metadata(opened))
        self.features = Features.from_arrow_schema(self.footers[0].schema.to_arrow_schema())
        self.groups = [
            (number, group)
            for number, each in enumerate(self.footers)
            for group in range(each.num_row_groups)
        ]
        sizes = [self.footers[number].row_group(group).num_rows for number, group in self.groups]
        self.ends = np.cumsum(sizes)
        self._kept: dict[int, Table] = {}

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> Mapping[str, object]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = int(np.searchsorted(self.ends, index, side="right"))
        first = int(self.ends[place - 1]) if place else 0
        return self._group(place).slice(index - first, 1).to_pylist()[0]

    def _group(self, place: int) -> "Table":
        """The rows of one group. Its file is opened anew: workers that load images share no open file."""
        import fsspec
        import pyarrow.parquet

        if place not in self._kept:
            number, group = self.groups[place]
            with fsspec.open(self.files[number], "rb") as opened:
                file = pyarrow.parquet.ParquetFile(opened, metadata=self.footers[number])
                table = file.read_row_group(group, use_threads=False)
            for old in list(self._kept)[: len(self._kept) - KEPT_GROUPS + 1]:
                del self._kept[old]
            self._kept[place] = table
        return self._kept[place]


def open_parquet(name: str, root: str | Path | None, split: str | None) -> ParquetDataset:
    """The set ``root``: a folder of parquet files, or owner/name on the hub.

    @IMAGE,LABELS behind it names the columns, where that is not clear. ``name`` is hf or hf_stream.
    """
    place, given = _place_and_columns(name, root)
    builder = _builder(place)
    files = {str(each): list(map(str, paths)) for each, paths in _data_files(builder, place).items()}
    chosen = _chosen_split(place, split, list(files))
    rows = _streamed(files[chosen], place) if name == "hf_stream" else _copied(place, chosen)
    if len(rows) == 0:
        raise DataError(f"{place}: split {chosen!r} has no rows")
    columns = find_columns(rows.features, rows[0], given, place)
    space = _label_space(place, rows.features, columns)
    return ParquetDataset(name, split or chosen, Path(place), rows, columns, space, files[chosen])


def parquet_splits(root: str) -> list[str]:
    """The splits of a set, as `open_parquet` takes it."""
    place, _ = _place_and_columns("hf", root)
    return [str(split) for split in _data_files(_builder(place), place)]


def _place_and_columns(name: str, root: str | Path | None) -> tuple[str, tuple[str, str] | None]:
    """The folder or the name on the hub, and the columns named behind an @."""
    if root is None:
        raise DataError(f"{name}: say which set, {name}:owner/name or {name}:FOLDER (data.root=... to train)")
    text = os.path.expanduser(root)
    place, at, columns = text.rpartition("@")
    if not at or Path(text).exists():
        place, columns = text, ""
    if columns and columns.count(",") != 1:
        raise DataError(f"{text}: behind the @ come two columns, IMAGE,LABELS")
    image, _, labels = columns.partition(",")
    if not Path(place).is_dir() and (place.startswith((".", "/")) or place.count("/") != 1):
        raise DataError(
            f"{place}: there is no such folder of parquet files; a set on the hub is called owner/name"
        )
    return place, (image, labels) if columns else None


def _builder(place: str) -> "DatasetBuilder":
    """What `datasets` makes of a folder or a name; DataError in one line where it makes nothing of it."""
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise ImportError(
            f"data sets of the hub and parquet files need the library datasets: {INSTALL}"
        ) from error
    try:
        with _reaching(place):
            return load_dataset_builder(place)
    except HubError:
        raise
    except Exception as error:  # its own kinds, those of the hub and those of the network
        raise DataError(f"{place}: cannot be read as a data set ({_first_line(error)})") from error


def _reaching(place: str) -> AbstractContextManager[None]:
    """Inside, a set of the hub may be fetched; a folder needs no hub."""
    if Path(place).is_dir():
        return nullcontext()
    return fetching(
        place, "there is no such folder either; check the name, or download the set into a folder"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def _data_files(builder: "DatasetBuilder", place: str) -> Mapping[object, list[object]]:
    files = builder.config.data_files or {}
    odd = [file for paths in files.values() for file in paths if not str(file).endswith(".parquet")]
    if Path(place).is_dir() and (odd or not files):
        found = f"{Path(str(odd[0])).name} was taken for one of its" if odd else "there are none among its"
        raise DataError(
            f"{place}: is no folder of parquet files ({found} data files); call them train.parquet and "
            "val.parquet, or put them into folders train and val"
        )
    return files


def _chosen_split(place: str, split: str | None, splits: list[str]) -> str:
    """``split``, or validation where the set calls val so."""
    if split == "val" and split not in splits and "validation" in splits:
        return "validation"
    if split not in splits:
        raise DataError(f"{place} has no split {split!r}; there are: {', '.join(splits)}")
    return split


def _copied(place: str, split: str) -> Rows:
    """The rows in the cache of `datasets`, which makes it on first use."""
    from datasets import Image, load_dataset

    try:
        with _reaching(place):
            rows = load_dataset(place, split=split)
    except HubError:
        raise
    except Exception as error:  # as in _builder, and a disk that is full
        raise DataError(f"{place}, split {split}: cannot be read ({_first_line(error)})") from error
    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _streamed(files: list[str], place: str) -> StreamedRows:
    odd = [file for file in files if not file.endswith(".parquet")]
    if odd:
        raise DataError(f"{place}: {odd[0]} is no parquet file, and only those are streamed: use hf:{place}")
    try:
        return StreamedRows(files)
    except Exception as error:  # pyarrow's kinds and those of file systems
        raise DataError(f"{place}: cannot be read as parquet ({_first_line(error)})") from error


def _label_space(place: str, features: "Features", columns: Columns) -> LabelSpace:
    """Classes of the label column itself, of id2label.json, or of classes.txt; they must not disagree."""
    found: dict[str, LabelSpace] = {}
    if names := class_names(features[columns.labels]):
        found[f"the column {columns.labels}"] = LabelSpace(names, default_colours(len(names)))
    if (path := _beside(place, "id2label.json")) is not None:
        found["id2label.json"] = read_id2label(path)
    if (path := _beside(place, "classes.txt")) is not None:
        found["classes.txt"] = read_classes(path)
    if not found:
        raise DataError(
            f"{place}: names no classes; write classes.txt, or id2label.json such as "
            '{"0": "road", "1": "sky"}, into the folder of the set'
        )
    (first, space), *others = found.items()
    for other, each in others:
        if each.names != space.names:
            raise DataError(
                f"{place}: {first} and {other} name different classes; correct or remove one of them"
            )
    return others[-1][1] if others and "classes.txt" in found else space


def _beside(place: str, file: str) -> Path | None:
    """A file of the set; None where it has none."""
    if Path(place).is_dir():
        return Path(place) / file if (Path(place) / file).is_file() else None
    from huggingface_hub import hf_hub_download

    try:
        with _reaching(place):
            return Path(hf_hub_download(place, file, repo_type="dataset"))
    except OSError:  # not there, or not to be had: the classes may be named elsewhere
        return None


def read_id2label(path: Path) -> LabelSpace:
    """The classes of a JSON object from ids to names, in the order of the ids, which may leave some out."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        names = {int(key): value for key, value in stored.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise DataError(f'{path}: must be an object from ids to names, such as {{"0": "road"}}') from error
    fits = all(isinstance(name, str) and name.strip() and name.isprintable() for name in names.values())
    if not names or not fits or len(set(names.values())) < len(names) or len(names) < len(stored):
        raise DataError(f"{path}: every id needs a name of its own, in plain text")
    if min(names) < 0 or max(names) > 65535 or IGNORE in names or len(names) > IGNORE:
        raise DataError(f"{path}: ids lie between 0 and 65535 and are not {IGNORE}, which is ignored")
    ids = sorted(names)
    gaps = ids != list(range(len(ids)))
    to_train = {**{raw: train for train, raw in enumerate(ids)}, IGNORE: IGNORE} if gaps else {}
    return LabelSpace(tuple(names[each] for each in ids), default_colours(len(ids)), to_train)
