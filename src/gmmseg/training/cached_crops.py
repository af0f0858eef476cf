"""Augmented crops whose backbone maps are computed once, kept in a file, and trained on again and again.

A frozen backbone gives the same maps whenever it sees the same crop. So the crops of the first few epochs go
through it once; their maps (half precision) and labels are kept as records of one file, and the decoder and
the head of the same segmenter are trained on those.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from gmmseg import distributed
from gmmseg.atomic import LEFTOVER_PREFIX, write_bytes
from gmmseg.distributed import Say
from gmmseg.models import Segmenter, SegmenterOutput
from gmmseg.models.features import SplitFeatures
from gmmseg.models.pairing import shrink_labels
from gmmseg.samples import Batch, Sample, collate

FOLDER = "crops"
"""Where a run folder has its crops."""
CROPS_FILE, ABOUT_FILE = "crops.bin", "crops.json"
_TEMPORARY = f"{LEFTOVER_PREFIX}{CROPS_FILE}"
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota is used up",
    errno.EFBIG: "files may not be that large here",
}
_BLOCK = 8  # crops that go through the backbone together, the same ones however many processes there are

Autocast = Callable[[], AbstractContextManager[object]]


class NoRoomForCrops(OSError):
    """The disk cannot hold the crops; the message says how many bytes they need."""


class Crops(Protocol):
    """Samples of one size, drawn anew in each epoch: what `gmmseg.data.augmented.AugmentedDataset` is."""

    name: str

    @property
    def epoch(self) -> int: ...
    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sample: ...


@dataclass(frozen=True)
class CropLayout:
    """How maps of these ``shapes`` (c h w) and the labels of a crop of ``size`` (H, W) become one record.

    A record holds the maps one after the other, each with its channels last, the labels as bytes, those at
    every ``label_stride``-th pixel in both directions, and a checksum of both.
    """

    shapes: tuple[tuple[int, int, int], ...]
    size: tuple[int, int]
    label_stride: int
    precision: str

    @property
    def label_size(self) -> tuple[int, int]:
        """Height and width of the labels that are kept."""
        height, width = (-(-side // self.label_stride) for side in self.size)
        return height, width

    @property
    def record(self) -> np.dtype:
        """The type of one record."""
        values = sum(math.prod(shape) for shape in self.shapes)
        number = np.dtype(self.precision).newbyteorder("<")
        parts = [("maps", number, (values,)), ("labels", np.uint8, self.label_size), ("checksum", "<u4")]
        return np.dtype(parts)

    def pack(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps, each (b c h w) -> rows (b n) in the layout's precision, on the CPU."""
        rows = torch.cat([each.permute(0, 2, 3, 1).flatten(1) for each in maps], dim=1)
        return rows.to("cpu", getattr(torch, self.precision))

    def unpack(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows (b n) -> maps in single precision, each (b c h w), in channels_last as a backbone's are."""
        parts = rows.split([math.prod(shape) for shape in self.shapes], dim=1)
        return tuple(
            part.float().contiguous().view(-1, h, w, c).permute(0, 3, 1, 2)
            for part, (c, h, w) in zip(parts, self.shapes, strict=True)
        )


@dataclass(frozen=True)
class CachedCrop:
    """A record: ``maps`` (n) of the layout's precision, ``labels`` (h w) uint8, and which crop it is."""

    maps: Tensor
    labels: Tensor
    name: str


def collate_crops(crops: Sequence[CachedCrop]) -> Batch:
    """Records -> Batch with rows of maps (b n) in the place of images; for a DataLoader's ``collate_fn``."""
    labels = torch.stack([crop.labels for crop in crops]).long()
    return Batch(torch.stack([crop.maps for crop in crops]), labels, [crop.name for crop in crops])


class CachedCrops(Dataset[CachedCrop]):
    """The crops that ``crops`` draws in epochs 0 .. count - 1, as records in a file of ``folder``.

    `make` writes the file. In epoch t, index i is crop t % count of sample i. An index beyond the length is
    another visit to sample ``index % len``: each further visit takes the next crop in turn. So the first
    ``count`` epochs of an order that visits every sample once are those of training without a cache.
    ``made_with`` is plain data: what the crops depend on besides the backbone.

    Labels are kept at half the crop's resolution unless ``label_stride`` says otherwise, and the loss is
    computed there: at full resolution it takes more time than the rest of a step that no backbone is part of.
    """

    def __init__(
        self,
        folder: Path,
        crops: Crops,
        count: int,
        made_with: Mapping[str, object],
        *,
        precision: str = "float16",
        label_stride: int = 2,
        workers: int = 0,
    ) -> None:
        self.folder, self.crops, self.count, self.workers = folder, crops, count, workers
        self.name, self.made_with = crops.name, made_with
        self.precision, self.label_stride = precision, label_stride
        self._layout: CropLayout | None = None

    # Reading ------------------------------------------------------------------------------------------

    @property
    def layout(self) -> CropLayout:
        """How records are laid out; known once the crops are made."""
        if self._layout is None:
            raise RuntimeError(f"{self.folder}: the crops are not made yet; call CachedCrops.make first")
        return self._layout

    def set_epoch(self, epoch: int) -> None:
        """To be called before each pass; workers already running follow."""
        self.crops.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, index: int) -> CachedCrop:
        visit, sample = divmod(index, len(self))
        number = (self.crops.epoch + visit) % self.count
        record = self._read(number * len(self) + sample)
        labels = torch.from_numpy(record["labels"].copy())
        return CachedCrop(torch.from_numpy(record["maps"].copy()), labels, f"sample {sample} crop {number}")

    def _read(self, position: int) -> np.void:
        # Mapped record by record: pages of a mapping that stays would count as memory of this process.
        kind = self.layout.record
        path, offset = self.folder / CROPS_FILE, position * kind.itemsize
        return np.memmap(path, kind, mode="r", offset=offset, shape=(1,))[0]

    # Writing ------------------------------------------------------------------------------------------

    def make(self, segmenter: Segmenter, *, autocast: Autocast = nullcontext, say: Say | None = None) -> None:
        """Write the file with the maps of ``segmenter``, unless the one there was made with the same.

        All processes call it, and each writes its part. ``autocast``: the context of training's forward
        passes. ``say`` is told how large the file will be.
        """
        segmenter.backbone.eval()
        with torch.no_grad(), autocast():
            self._layout = self._find_layout(segmenter)
        about = self._about(segmenter)
        say = distributed.said_once(say)
        if distributed.any_process(distributed.rank() == 0 and self._holds(about)):
            say(f"{self.folder}: the cached crops are those of this run and are used again")
            return
        say(f"caching {self.count} crops of {len(self)} images: {in_bytes(self._bytes)} in {self.folder}")
        with self._temporary(about) as path, torch.no_grad(), autocast():
            self._write(path, segmenter)

    def _find_layout(self, segmenter: Segmenter) -> CropLayout:
        """That of one crop, which all others share."""
        batch = collate([self.crops[0]])
        height, width = batch.labels.shape[-2:]
        shapes = tuple((each.shape[1], each.shape[2], each.shape[3]) for each in _maps(segmenter, batch))
        return CropLayout(shapes, (height, width), self.label_stride, self.precision)

    @property
    def _bytes(self) -> int:
        return self.count * len(self) * self.layout.record.itemsize

    def _about(self, segmenter: Segmenter) -> dict[str, object]:
        """All that the file depends on, as JSON reads it back."""
        layout = asdict(self.layout)
        about = {**self.made_with, "count": self.count, "samples": len(self), "layout": layout}
        about["backbone"] = _digest(segmenter)
        return json.loads(json.dumps(about))

    def _holds(self, about: dict[str, object]) -> bool:
        """Whether the folder has a whole file that was made with the same, and is as it was written."""
        try:
            known = json.loads((self.folder / ABOUT_FILE).read_text(encoding="utf-8"))
            whole = (self.folder / CROPS_FILE).stat().st_size == self._bytes
            return known == about and whole and self._undamaged()
        except (OSError, ValueError):
            return False

    def _undamaged(self) -> bool:
        """Whether every record has the checksum of what it holds; read once, before all of them are used."""
        kind = self.layout.record
        with (self.folder / CROPS_FILE).open("rb") as file:
            records = iter(lambda: file.read(kind.itemsize), b"")
            return all(_checksum(data) == np.frombuffer(data, kind)["checksum"][0] for data in records)

    @contextmanager
    def _temporary(self, about: dict[str, object]) -> Iterator[Path]:
        """An empty file of full size for all processes to fill, which becomes the file of crops if all do.

        Otherwise nothing is left, and every process raises.
        """
        path = self.folder / _TEMPORARY
        failed: BaseException | None = None
        try:
            with _agreed():
                if distributed.rank() == 0:
                    self._reserve(path)
            with _agreed():
                yield path
            with _agreed():
                if distributed.rank() == 0:
                    os.replace(path, self.folder / CROPS_FILE)
                    write_bytes(self.folder / ABOUT_FILE, json.dumps(about).encode())
        except BaseException as error:
            failed = error
        if failed is None:
            return
        if distributed.rank() == 0:
            path.unlink(missing_ok=True)
            remove_crops(self.folder)
        if isinstance(failed, OSError) and failed.errno in _NO_ROOM:
            raise NoRoomForCrops(self._no_room(_NO_ROOM[failed.errno])) from failed
        raise failed

    def _reserve(self, path: Path) -> None:
        """An empty file of full size, if the disk has room for it."""
        remove_crops(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < self._bytes:
            raise NoRoomForCrops(self._no_room(f"the disk has {in_bytes(free)} free"))
        with path.open("wb") as file:
            file.truncate(self._bytes)

    def _no_room(self, what: str) -> str:
        needed = f"train.cached_crops={self.count} needs {in_bytes(self._bytes)}"
        return f"{self.folder}: {needed}, {what}; lower train.cached_crops or data.crop"

    def _write(self, path: Path, segmenter: Segmenter) -> None:
        """This process's blocks of every epoch, through the backbone and into their records."""
        starts = range(0, len(self), _BLOCK)
        every = [list(range(start, min(start + _BLOCK, len(self)))) for start in starts]
        own = [every[number] for number in distributed.shard(len(every))]
        total, quiet = self.count * sum(map(len, own)), distributed.rank() > 0
        # Written, not mapped: a full disk is then an error, where a mapping would end the process.
        with path.open("r+b") as file, tqdm(total=total, unit="crop", disable=quiet, leave=False) as bar:
            for epoch in range(self.count):
                self.crops.set_epoch(epoch)
                for block, batch in zip(own, self._load(own), strict=True):
                    maps = _maps(segmenter, batch)
                    file.seek((epoch * len(self) + block[0]) * self.layout.record.itemsize)
                    file.write(self._records(maps, batch))
                    bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())

    def _load(self, blocks: list[list[int]]) -> DataLoader:
        return DataLoader(
            self.crops,  # type: ignore[arg-type]  # has what a DataLoader asks for
            batch_sampler=blocks,
            num_workers=self.workers,
            collate_fn=collate,
            generator=torch.Generator().manual_seed(0),
        )

    def _records(self, maps: Sequence[Tensor], batch: Batch) -> bytes:
        rows = self.layout.pack(maps)
        if not bool(rows.isfinite().all()):
            raise ValueError(
                f"the backbone's maps of {', '.join(batch.names)} exceed what {self.precision} holds; "
                "train with train.cached_crops=0"
            )
        records = np.empty(len(rows), self.layout.record)
        records["maps"] = rows.numpy()
        records["labels"] = shrink_labels(batch.labels, self.layout.label_size).numpy()
        for record in records:
            record["checksum"] = _checksum(record.tobytes())
        return records.tobytes()


class OnCachedMaps(nn.Module):
    """``segmenter`` from its backbone's maps on: rows (b n) of `CachedCrops` -> SegmenterOutput.

    The modules are those of the segmenter itself, so what is trained here is trained there. Where several
    heads learn, each has an equal part of the rows to itself, its own head the first: what is found moves
    most with the order of batches, and heads that all saw the same ones would err alike.
    """

    def __init__(self, segmenter: Segmenter, crops: CachedCrops) -> None:
        super().__init__()
        self.segmenter, self.crops = segmenter, crops

    def forward(self, rows: Tensor) -> SegmenterOutput:
        layout = self.crops.layout
        parts = rows.chunk(1 + len(self.segmenter.learning)) if self.training else (rows,)
        maps, *others = (layout.unpack(part) for part in parts)
        features = splittable(self.segmenter).decode(maps, layout.size)
        return self.segmenter.on_features(features, maps, layout.size, others)


def splittable(segmenter: Segmenter) -> SplitFeatures:
    """The features of a segmenter whose backbone's maps can be kept; ValueError for any other."""
    features = segmenter.features
    if not isinstance(features, SplitFeatures):
        raise ValueError(
            f"train.cached_crops: the backbone of {type(features).__name__} cannot be run apart from its "
            "decoder; set train.cached_crops=0, or choose a network whose backbone can, such as "
            "light_efficientnet_lite0"
        )
    if any(parameter.requires_grad for parameter in segmenter.backbone.parameters()):
        raise ValueError(
            "train.cached_crops needs a frozen backbone: set train.backbone_multiplier=0, or "
            "train.cached_crops=0"
        )
    return features


def remove_crops(folder: Path) -> None:
    """Take cached crops away from ``folder``, and the folder if nothing else is in it."""
    for name in (ABOUT_FILE, CROPS_FILE, _TEMPORARY):  # without the first, the second means nothing
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def in_bytes(count: int) -> str:
    """A number of bytes for people: exact, and in GB or MB."""
    unit, name = (10**9, "GB") if count >= 10**9 else (10**6, "MB")
    return f"{count:,} bytes ({count / unit:.1f} {name})"


def _maps(segmenter: Segmenter, batch: Batch) -> tuple[Tensor, ...]:
    return splittable(segmenter).backbone_maps(segmenter.normalise(batch.images.to(segmenter.mean.device)))


def _digest(segmenter: Segmenter) -> str:
    """Of the backbone's weights and statistics, and of how images are normalised for it."""
    digest = hashlib.sha256(f"{segmenter.mean.tolist()} {segmenter.std.tolist()}".encode())
    for name, value in segmenter.backbone.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _checksum(record: bytes) -> int:
    """Of a record without its last field, which holds it."""
    return zlib.crc32(record[:-4])


@contextmanager
def _agreed() -> Iterator[None]:
    """Every process raises where one of them has: none is left to wait for the others."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:
        failed = error
    fault = None if failed is None else (failed.errno if isinstance(failed, OSError) else None, str(failed))
    faults = [each for each in distributed.gather_objects(fault) if each is not None]
    if failed is not None:
        raise failed
    if faults:
        number, text = faults[0]
        other = OSError(f"another process could not write its cached crops: {text}")
        other.errno = number  # so that all say the same of a full disk
        raise other
