"""What one image becomes: pictures in folders, frames in videos, a line in the summary."""

import errno
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from PIL import Image

from gmmseg.atomic import write_bytes
from gmmseg.images import ImageError
from gmmseg.inference.file_prediction import RawMaps
from gmmseg.inference.image_maps import Meaning
from gmmseg.inference.inputs import Input
from gmmseg.inference.object_files import ObjectFiles
from gmmseg.inference.pictures import encoded
from gmmseg.inference.strangest import Strangest
from gmmseg.inference.summary_files import ImageRow, image_row
from gmmseg.inference.video import VideoFile, frame_rate

FILMED = ("overlay", "anomaly", "objects")
"""Kinds of pictures that are frames of a video where the input is one; others hold exact values."""


@dataclass(frozen=True, eq=False)
class Made:
    """What became of an image or frame: its line and pictures, or the ``reason`` that there are none."""

    item: Input
    name: str
    row: ImageRow | None = None
    pictures: dict[str, Image.Image] | None = None
    raw: RawMaps | None = None
    reason: str = ""

    @property
    def frame(self) -> int | None:
        """The number of the frame, of a video."""
        return int(self.name.rsplit("/", 1)[1]) if self.item.is_video and self.row is not None else None


def make_files(
    out: Path, item: Input, name: str, raw: RawMaps | None, reason: str, *, write_raw: bool
) -> Made:
    """Draw the pictures of an image and write those that are files of their own; any thread may do it."""
    if raw is None:
        return Made(item, name, reason=reason)
    maps = raw.maps
    output = f"{item.output}/{name.rsplit('/', 1)[1]}" if item.is_video else item.output
    pictures = maps.pictures()
    files = {
        f"{kind}/{output}.png": encoded(picture)
        for kind, picture in pictures.items()
        if not (item.is_video and kind in FILMED)
    }
    files |= {f"raw/{output}.npz": raw.npz()} if write_raw else {}
    try:
        for path, content in files.items():
            _write(out / path, content)
    except ImageError as error:
        return Made(item, name, reason=str(error))
    return Made(item, name, image_row(name, output, maps, raw.seconds), pictures, raw)


def _write(path: Path, content: bytes) -> None:
    """Write a file; a name too long for the file system is the image's fault alone."""
    try:
        write_bytes(path, content)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ImageError(path, "its name leaves no room for the endings of its outputs") from error


class Outputs:
    """Takes in what became of each image, in order: lines, failures, the strangest, objects, videos."""

    def __init__(self, out: Path, meaning: Meaning, every: int, objects: ObjectFiles | None) -> None:
        self.out, self.meaning, self.every, self.objects = out, meaning, every, objects
        self.rows: list[tuple[str, ImageRow]] = []
        self.failed: dict[str, str] = {}
        self.strangest = Strangest()
        self._videos: dict[str, VideoFile] = {}
        self._filmed: Input | None = None

    @property
    def done(self) -> int:
        """Images and frames so far."""
        return len(self.rows)

    def add(self, made: Made) -> None:
        """Take in the next image or frame."""
        if made.item != self._filmed:
            self.close()
        if made.row is None or made.pictures is None or made.raw is None:
            self.failed[made.item.name] = made.reason
            return
        self.rows.append((made.item.name, made.row))
        self.strangest.add(made.row, made.pictures, made.frame)
        pictures = made.pictures
        if self.objects is not None:
            boxed = self.objects.add(made.item, made.name, made.raw.prediction, pictures["overlay"])
            pictures = {**pictures, "objects": boxed}
            if not made.item.is_video:
                _write(self.out / f"objects/{made.row.output}.png", encoded(boxed))
        if made.item.is_video:
            self._film(made.item, pictures)

    def _film(self, item: Input, pictures: dict[str, Image.Image]) -> None:
        """The pictures as the next frames of the videos of ``item``."""
        if self._filmed is None:
            rate = frame_rate(item.path) / self.every
            kinds = [kind for kind in FILMED if kind in pictures]
            self._filmed = item
            for kind in kinds:
                self._videos[kind] = VideoFile(self.out / kind / f"{item.output}.mp4", rate)
        for kind, video in self._videos.items():
            video.add(pictures[kind])

    def close(self) -> None:
        """Put the videos that are being written in their places."""
        videos, self._videos, self._filmed = self._videos, {}, None
        for video in videos.values():
            video.close()

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        for video in self._videos.values():
            video.discard()
