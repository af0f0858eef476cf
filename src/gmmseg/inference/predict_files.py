"""Images, folders and videos in, folders of pictures, videos and a summary out.

Files are decoded ahead in one thread and pictures written in others, so that the network need not wait.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gmmseg import distributed
from gmmseg.atomic import write_bytes
from gmmseg.images import ImageError
from gmmseg.inference.file_prediction import FilePredictor, ImageNotPredicted, RawMaps, predicted
from gmmseg.inference.image_maps import explaining_pictures
from gmmseg.inference.inputs import Input, find_inputs, images_of
from gmmseg.inference.object_files import ObjectFiles
from gmmseg.inference.output_files import Made, Outputs, make_files
from gmmseg.inference.overlapping import read_ahead
from gmmseg.inference.pictures import encoded
from gmmseg.inference.summary_files import summary_csv, summary_json
from gmmseg.inference.video import frame_count
from gmmseg.samples import Progress

WRITERS = max(2, min(4, os.cpu_count() or 1))
"""Threads that draw and write pictures; they wait for the disk, too."""
LARGE = 1 << 23
"""Pixels: of larger images one is in memory at a time."""
HEAVY = 1 << 24
"""Numbers of a posterior, 64 MB: one with more does not wait in memory while others are made."""


@dataclass(frozen=True)
class PredictSummary:
    """``done`` images and frames are in ``out_dir``; ``failed``: (name, reason) of each unreadable file."""

    out_dir: Path
    done: int
    failed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Work:
    """How files are predicted: ``threshold`` in place of the calibrated one, how many images of one size go
    through the network together, one frame in ``every`` of videos, and whether raw values are written."""

    threshold: float | None = None
    batch_size: int = 1
    every: int = 1
    raw: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class _Image:
    """An image or frame that was read: pixels (3 h w), or why it could not be."""

    item: Input
    name: str
    pixels: Tensor | None
    reason: str = ""

    @property
    def is_large(self) -> bool:
        return self.pixels is not None and self.pixels[0].numel() > LARGE


def predict_files(
    predictor: FilePredictor,
    inputs: Iterable[str | os.PathLike],
    out_dir: str | os.PathLike,
    work: Work = Work(),
    *,
    objects: ObjectFiles | None = None,
    progress: Progress | None = None,
) -> PredictSummary:
    """Predict every image and every frame of every video among ``inputs`` (files and folders).

    Of ``photos/a.jpg``, given as ``photos``, come ``labels/a.png`` (palette), ``overlay/a.png``,
    ``anomaly/a.png`` (heat map), ``unknown/a.png`` (255 above the threshold, if there is one) and, with
    ``raw``, ``raw/a.npz``; of ``clip.mp4`` the videos ``overlay/clip.mp4`` and ``anomaly/clip.mp4``, and the
    others frame by frame in ``labels/clip/``. Given ``objects``, also ``objects/a.png`` (with boxes) and
    ``objects.json``. Of all together: ``summary.csv``, ``summary.json``, ``strangest.png``, and what colours
    mean. Files that cannot be read are listed in the summary; the others are done. With several processes
    each does its share of the files, and the summary is of all.
    """
    out, given = Path(out_dir), [Path(path) for path in inputs]
    found = find_inputs(given, out)
    if not found:
        raise FileNotFoundError(f"no images or videos in {', '.join(map(str, given))}")
    mine = [found[index] for index in distributed.shard(len(found))]
    outputs = Outputs(out, predictor.meaning.with_threshold(work.threshold), work.every, objects)
    total = _total(mine, work.every)
    with outputs:
        for made in _made(predictor, mine, work, outputs):
            outputs.add(made)
            if progress:
                progress(outputs.done + len(outputs.failed), total, made.name)
    return _finish(outputs, found)


def _made(predictor: FilePredictor, items: Sequence[Input], work: Work, outputs: Outputs) -> Iterator[Made]:
    """What became of each image, in their order; files of single images are written already."""
    images = read_ahead(_read(items, predictor.max_pixels, work.every), work.batch_size + 1, _is_large)
    pending: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(WRITERS) as pool:
        try:
            for batch in _batches(images, work.batch_size):
                outcomes = _outcomes(predictor, batch, work, outputs)
                for image, (raw, reason) in zip(batch, outcomes):
                    job = (outputs.out, image.item, image.name, raw, reason)
                    pending.append(pool.submit(make_files, *job, write_raw=work.raw))
                alone = batch[0].is_large or any(_is_heavy(raw) for raw, _ in outcomes)
                while len(pending) > (0 if alone else 2 * WRITERS):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _outcomes(
    predictor: FilePredictor, batch: Sequence[_Image], work: Work, outputs: Outputs
) -> list[tuple[RawMaps | None, str]]:
    """The maps of each image of one size, or None and why there are none.

    An image that could not be read is a batch of its own.
    """
    pixels = [image.pixels for image in batch if image.pixels is not None]
    if not pixels:
        return [(None, batch[0].reason)]
    posterior = work.raw or outputs.objects is not None
    try:
        maps = predicted(predictor, pixels, outputs.meaning, posterior=posterior)
    except ImageNotPredicted as error:
        if len(batch) == 1:
            return [(None, str(error))]
        return [outcome for image in batch for outcome in _outcomes(predictor, [image], work, outputs)]
    return [(raw, "") for raw in maps]


def _is_heavy(raw: RawMaps | None) -> bool:
    return raw is not None and raw.posterior is not None and raw.posterior.numel() > HEAVY


def _is_large(image: _Image) -> bool:
    return image.is_large


def _read(items: Sequence[Input], max_pixels: int, every: int) -> Iterator[_Image]:
    """Every image and frame; after those of a file that can be read no further, why."""
    for item in items:
        try:
            for name, pixels in images_of(item, max_pixels, every=every):
                yield _Image(item, name, pixels)
        except (ImageError, FileNotFoundError) as error:
            yield _Image(item, item.name, None, str(error))


def _batches(images: Iterable[_Image], size: int) -> Iterator[list[_Image]]:
    """Neighbours of one size, at most ``size`` at a time; large images and unreadable ones alone."""
    batch: list[_Image] = []
    for image in images:
        if batch and (len(batch) == size or not _alike(batch[0], image)):
            yield batch
            batch = []
        batch.append(image)
        if image.is_large or image.pixels is None or size == 1:
            yield batch
            batch = []
    if batch:
        yield batch


def _alike(first: _Image, second: _Image) -> bool:
    return (
        first.pixels is not None
        and second.pixels is not None
        and first.pixels.shape == second.pixels.shape
        and not second.is_large
    )


def _total(items: list[Input], every: int) -> int | None:
    counts = [frame_count(item.path) if item.is_video else 1 for item in items]
    known = [
        -(-count // every) if item.is_video else 1 for count, item in zip(counts, items) if count is not None
    ]
    return sum(known) if len(known) == len(counts) else None


def _finish(outputs: Outputs, found: list[Input]) -> PredictSummary:
    """Write what is of all images and all processes; what was done, in the order of the inputs."""
    parts = distributed.gather_objects((outputs.rows, outputs.failed))
    failures = dict(failure for _, failed in parts for failure in failed.items())
    failed = tuple((item.name, failures[item.name]) for item in found if item.name in failures)
    order = {item.name: place for place, item in enumerate(found)}
    named = sorted((pair for rows, _ in parts for pair in rows), key=lambda pair: order[pair[0]])
    rows = [row for _, row in named]
    sheet = outputs.strangest.sheet(outputs.meaning)
    if outputs.objects is not None:
        outputs.objects.write(outputs.out, [item.name for item in found])
    if distributed.rank() == 0:
        files = {f"{name}.png": encoded(made) for name, made in explaining_pictures(outputs.meaning).items()}
        files |= {} if sheet is None else {"strangest.png": encoded(sheet)}
        files |= {
            "summary.csv": summary_csv(rows),
            "summary.json": summary_json(rows, outputs.meaning, failed),
        }
        for name, content in files.items():
            write_bytes(outputs.out / name, content)
    return PredictSummary(outputs.out, len(rows), failed)
