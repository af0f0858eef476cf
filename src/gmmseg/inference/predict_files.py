"""Images, folders and videos in, folders of pictures out."""

import errno
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmmseg import distributed
from gmmseg.atomic import write_bytes
from gmmseg.class_colours import Colours
from gmmseg.images import ImageError
from gmmseg.inference.heat import model_scale, scale_bar, scale_of
from gmmseg.inference.image_losses import large_components
from gmmseg.inference.inputs import Input, find_inputs, images_of
from gmmseg.inference.object_files import ObjectFiles
from gmmseg.inference.pictures import encoded, label_picture, legend, mask_picture, overlay
from gmmseg.inference.prediction import Prediction
from gmmseg.inference.video import frame_count
from gmmseg.models import Calibration
from gmmseg.samples import Progress


class PredictedRows(Protocol):
    """Some rows of an image: labels and anomaly (h w), posterior (c h w) or None where there is none."""

    @property
    def labels(self) -> Tensor: ...
    @property
    def anomaly(self) -> Tensor: ...
    @property
    def posterior(self) -> Tensor | None: ...


class FilePredictor(Protocol):
    """What predicts files: a `Predictor`, or an `ExportedPredictor`."""

    max_pixels: int

    @property
    def calibration(self) -> Calibration | None: ...
    @property
    def colours(self) -> Colours: ...
    @property
    def class_names(self) -> Sequence[str] | None: ...
    def strips(self, pixels: Tensor) -> Iterator[PredictedRows]: ...


class _Arrays(TypedDict):
    """What a file of raw values holds: labels and anomaly (h w), posterior (c h w)."""

    labels: NDArray[np.uint8]
    anomaly: NDArray[np.float32]
    posterior: NotRequired[NDArray[np.float32]]


@dataclass(frozen=True)
class PredictSummary:
    """``done`` images and frames are in ``out_dir``; ``failed``: (name, reason) of each unreadable file."""

    out_dir: Path
    done: int
    failed: tuple[tuple[str, str], ...]


def predict_files(
    predictor: FilePredictor,
    inputs: Iterable[str | os.PathLike],
    out_dir: str | os.PathLike,
    *,
    raw: bool = False,
    objects: ObjectFiles | None = None,
    progress: Progress | None = None,
) -> PredictSummary:
    """Predict every image and every frame of every video among ``inputs`` (files and folders).

    Of ``photos/a.jpg``, given as ``photos``, come ``labels/a.jpg.png`` (palette), ``overlay/a.jpg.jpg``,
    ``anomaly/a.jpg.png`` (heat map), ``unknown/a.jpg.png`` (255 where the segmenter's threshold says so, if
    it has one) and, with ``raw``, ``raw/a.jpg.npz`` (labels, posterior, anomaly, and p_values where the
    calibration knows them); of a video one of each per frame, in a folder of its name; ``legend.png`` and
    ``anomaly_scale.png`` for all. Given ``objects``, also ``objects/a.jpg.jpg`` (overlay with boxes) and, of
    all images, ``objects.json``. Files that cannot be read are listed in the summary; the others are done.
    With several processes each does its share of the files, and the summary is of all.
    """
    out, given = Path(out_dir), [Path(path) for path in inputs]
    found = find_inputs(given, out)
    if not found:
        raise FileNotFoundError(f"no images or videos in {', '.join(map(str, given))}")
    mine = [found[index] for index in distributed.shard(len(found))]
    total, done, failed = _total(mine), 0, list[tuple[str, str]]()
    for item in mine:
        try:
            for name, pixels in images_of(item, predictor.max_pixels):
                _write(out, _outputs(predictor, pixels, item, name, raw=raw, objects=objects))
                done += 1
                if progress:
                    progress(done + len(failed), total, name)
        except (ImageError, FileNotFoundError) as error:
            failed.append((item.name, str(error)))
            if progress:
                progress(done + len(failed), total, item.name)
    _write(out, _explanations(predictor) if distributed.rank() == 0 else ())
    if objects is not None:
        objects.write(out, [item.name for item in found])
    return _summary(out, found, done, failed)


def _summary(out: Path, found: list[Input], done: int, failed: list[tuple[str, str]]) -> PredictSummary:
    """What all processes have done of the inputs ``found``, in their order."""
    parts = distributed.gather_objects((done, failed))
    failures = dict(failure for _, part in parts for failure in part)
    in_order = tuple((item.name, failures[item.name]) for item in found if item.name in failures)
    return PredictSummary(out, sum(count for count, _ in parts), in_order)


def _write(out: Path, outputs: Iterable[tuple[str, bytes]]) -> None:
    """Write each output under ``out``; a name too long for the file system is the image's fault alone."""
    for path, data in outputs:
        try:
            write_bytes(out / path, data)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise ImageError(path, "its name leaves no room for the endings of its outputs") from error


def _total(found: list[Input]) -> int | None:
    counts = [frame_count(item.path) if item.is_video else 1 for item in found]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _outputs(
    predictor: FilePredictor,
    pixels: Tensor,
    item: Input,
    name: str,
    *,
    raw: bool,
    objects: ObjectFiles | None,
) -> Iterator[tuple[str, bytes]]:
    """Relative path and content of each file that one image or frame of ``item`` becomes."""
    arrays = _predict(predictor, pixels, posterior=raw or objects is not None)
    labels, anomaly = arrays["labels"], arrays["anomaly"]
    calibration, colours = predictor.calibration, predictor.colours
    unknown = None if calibration is None else _unknown(anomaly, calibration)
    photograph = (pixels.movedim(0, -1) * 255).round().to(torch.uint8).numpy()
    overlaid = overlay(photograph, labels, colours, unknown)
    yield f"labels/{name}.png", encoded(label_picture(labels, colours), "png")
    yield f"overlay/{name}.jpg", encoded(overlaid, "jpeg")
    yield f"anomaly/{name}.png", encoded(scale_of(calibration, anomaly).picture(anomaly), "png")
    if unknown is not None:
        yield f"unknown/{name}.png", encoded(mask_picture(unknown), "png")
    if raw:
        yield f"raw/{name}.npz", _raw(arrays, calibration)
    if objects is not None:
        boxed = objects.add(item, name, _prediction(arrays, calibration), overlaid)
        yield f"objects/{name}.jpg", encoded(boxed, "jpeg")


def _explanations(predictor: FilePredictor) -> Iterator[tuple[str, bytes]]:
    """What the colours of all pictures mean: the classes, and the scale of the heat maps."""
    calibration, colours = predictor.calibration, predictor.colours
    threshold = None if calibration is None else calibration.threshold
    names = predictor.class_names or [f"class {index}" for index in range(len(colours))]
    classes = legend(names, colours, width=480, unknown=threshold is not None)
    yield "legend.png", encoded(classes, "png")
    yield "anomaly_scale.png", encoded(scale_bar(model_scale(calibration), threshold), "png")


def _raw(arrays: _Arrays, calibration: Calibration | None) -> bytes:
    """The content of a file of raw values."""
    buffer = io.BytesIO()
    p_values = None if calibration is None else calibration.p_values(torch.from_numpy(arrays["anomaly"]))
    more = {} if p_values is None else {"p_values": p_values.numpy()}
    np.savez(buffer, allow_pickle=False, **arrays, **more)
    return buffer.getvalue()


def _prediction(arrays: _Arrays, calibration: Calibration | None) -> Prediction:
    """The same as a Prediction; arrays must hold the posterior."""
    labels, posterior, anomaly = (
        torch.from_numpy(each) for each in (arrays["labels"], arrays["posterior"], arrays["anomaly"])
    )
    return Prediction(labels, posterior, anomaly, calibration)


def _unknown(anomaly: NDArray[np.float32], calibration: Calibration) -> NDArray[np.bool_] | None:
    """Which pixels of an anomaly map (h w) are unknown, as `Prediction.unknown` says it."""
    if calibration.threshold is None:
        return None
    return large_components(anomaly > np.float32(calibration.threshold), calibration.min_area)


def _predict(predictor: FilePredictor, pixels: Tensor, *, posterior: bool) -> _Arrays:
    """Labels and anomaly (h w), and when asked for the posterior (c h w), which is large."""
    strips = [
        (strip.labels.cpu(), strip.anomaly.cpu(), _posterior_of(strip) if posterior else None)
        for strip in predictor.strips(pixels)
    ]
    arrays: _Arrays = {
        "labels": torch.cat([labels for labels, _, _ in strips]).numpy(),
        "anomaly": torch.cat([anomaly for _, anomaly, _ in strips]).numpy(),
    }
    kept = [part for _, _, part in strips if part is not None]
    return {**arrays, "posterior": torch.cat(kept, dim=1).numpy()} if kept else arrays


def _posterior_of(strip: PredictedRows) -> Tensor:
    if strip.posterior is None:
        raise ValueError(
            "raw values and objects need the posterior, and this model was exported without it: export it "
            "with --posterior, or leave out --raw and --objects"
        )
    return strip.posterior.cpu()
