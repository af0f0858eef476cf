"""From a network's coarse maps to full-resolution ones, for a whole image at once or window by window.

Anomaly scores are read where the network speaks, at its own resolution, and their maps are upsampled.
Between two classes a pixel's evidence for either is interpolated down; its score would make every outline
of a known object strange.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.inference.readings import fused_of
from gmmseg.mixture import anomaly_score
from gmmseg.models import Segmenter, SegmenterOutput
from gmmseg.models.conversion import share_weights
from gmmseg.models.features import resize

SMALLEST_SIDE = 32
"""The coarsest stride in use: an image of this size has at least one cell everywhere in a network."""

REPEATED = 64
"""Sides that have to be padded become multiples of this many pixels, or a few more where the stride asks."""

STRIP_PIXELS = 1 << 22
"""Maps are resized to the size of a larger image than this in strips."""

NOT_FINITE = (
    "the network's output is not finite (NaN or infinity), so its weights are damaged or training diverged: "
    "use weights of an earlier step, or train again"
)

Reading = Callable[[SegmenterOutput], Tensor]
"""Makes one map (b h w) of an output at the network's resolution."""


def anomaly_map(output: SegmenterOutput) -> Tensor:
    """Higher = stranger, (b h w): from the evidence, or from the logits (max-logit) without mixtures.

    What models show that have no density beside their head.
    """
    scores = output.logits if output.evidence is None else output.evidence
    return anomaly_score(scores.movedim(1, -1))


def anomaly_reading(segmenter: Segmenter) -> Reading:
    """What a segmenter shows as its anomaly map: the score that its calibration is of."""
    return fused_of(segmenter.calibration) or anomaly_map


@dataclass(frozen=True)
class Maps:
    """Full-resolution ``logits`` (b c h w), at the segmenter's temperature, and ``scores`` (b s h w), one for
    each reading asked for, of the output as it is."""

    logits: Tensor
    scores: Tensor

    @property
    def labels(self) -> Tensor:
        """The likeliest class, (b h w) int64."""
        return self.logits.max(1).indices  # several times quicker than argmax on a CPU, which says the same

    @property
    def posterior(self) -> Tensor:
        """p(class given pixel), (b c h w)."""
        return self.logits.softmax(1)

    @property
    def anomaly(self) -> Tensor:
        """The first score, (b h w): unless others were asked for, how strange each pixel is."""
        return self.scores[:, 0]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Maps":
        """The same maps after ``change`` (a function of one tensor) of each."""
        return Maps(change(self.logits), change(self.scores))


def whole(segmenter: Segmenter, images: Tensor, readings: Sequence[Reading] = (anomaly_map,)) -> Maps:
    """Maps of images (b 3 h w) in [0, 1] in one pass, at their own size."""
    output, seen = _padded_pass(segmenter, images)
    # Class after class: what is made of full-size logits is then made several times quicker.
    logits = output.logits.contiguous() / segmenter.temperature
    maps = Maps(logits, _read_all(readings, output))
    return maps.map(lambda coarse: _over_image(coarse, segmenter, seen, images.shape[-2:]))


def whole_scores(segmenter: Segmenter, images: Tensor, readings: Sequence[Reading]) -> Tensor:
    """The scores (b s h w) of `whole` alone: logits of many classes take longest to upsample."""
    output, seen = _padded_pass(segmenter, images)
    return _over_image(_read_all(readings, output), segmenter, seen, images.shape[-2:])


def _padded_pass(segmenter: Segmenter, images: Tensor) -> tuple[SegmenterOutput, torch.Size]:
    """The output for images (b 3 h w), and the size at which the network sees them, as `fitting` says."""
    padded = pad(images, *fitting((images.shape[-2], images.shape[-1]), segmenter.stride))
    return forward(segmenter, padded), padded.shape[-2:]


def _over_image(coarse: Tensor, segmenter: Segmenter, seen: torch.Size, size: torch.Size) -> Tensor:
    """Maps (b c h w) resized over all the network saw, then cut to the image."""
    full = upsample(coarse, seen, align_corners=segmenter.align_corners)
    return full[..., : size[0], : size[1]]


def _read_all(readings: Sequence[Reading], output: SegmenterOutput) -> Tensor:
    """(b s h w) at the network's resolution."""
    return torch.stack([_read(reading, output) for reading in readings], dim=1)


def fitting(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """The size up to which an image is continued by its border pixels before a network sees it.

    Where ``stride`` divides both sides it stays as it is. Elsewhere the cells of the network's maps would
    not tile it; since it must grow anyway, it grows to multiples of REPEATED, so that images of a thousand
    sizes are of a few hundred for the kernels, which keep something for each. No side is below SMALLEST_SIDE.
    """
    height, width = (max(side, SMALLEST_SIDE) for side in size)
    if height % stride == 0 and width % stride == 0:
        return height, width
    multiple = next_multiple(REPEATED, stride)
    return next_multiple(height, multiple), next_multiple(width, multiple)


def _read(reading: Reading, output: SegmenterOutput) -> Tensor:
    scores = reading(output).float()
    if scores.shape != output.logits[:, 0].shape:
        name = getattr(reading, "name", "this score")
        raise ValueError(
            f"{name} gives {tuple(scores.shape)} where the network has {tuple(output.logits[:, 0].shape)} "
            "cells: a score has one number for each"
        )
    return scores


def sliding(
    segmenter: Segmenter,
    images: Tensor,
    window: int,
    stride: int,
    readings: Sequence[Reading] = (anomaly_map,),
) -> Maps:
    """Maps of images (b 3 h w) at their own size, the mean of all windows that see a pixel.

    Windows are ``window`` square, or as long as the image where that is less, and ``stride`` apart; the last
    of a row or column is moved back to end at the border. The mean is that of logits and of scores, for
    mixtures of log likelihoods: windows multiply their opinions and no single one can drown the rest.
    """
    return joined(sliding_strips(segmenter, images, window, stride, readings))


def joined(strips: Iterable[Maps]) -> Maps:
    """Strips of rows, from top to bottom, as one."""
    every = list(strips)
    if len(every) == 1:
        return every[0]
    logits, scores = [strip.logits for strip in every], [strip.scores for strip in every]
    return Maps(torch.cat(logits, dim=2), torch.cat(scores, dim=2))


def sliding_strips(
    segmenter: Segmenter,
    images: Tensor,
    window: int,
    stride: int,
    readings: Sequence[Reading] = (anomaly_map,),
) -> Iterator[Maps]:
    """What `sliding` returns, as strips of rows from top to bottom.

    A strip is handed out as soon as no window further down reaches it: memory is one row of windows,
    however tall the image.
    """
    height, width = images.shape[-2:]
    tops, lefts = window_starts((height, width), window, stride)
    across = coverage(lefts, window, width).to(images.device)
    down = coverage(tops, window, height).to(images.device)
    pending: Maps | None = None
    for top, next_top in zip(tops, [*tops[1:], height]):
        row = window_row(segmenter, images[..., top : top + window, :], lefts, window, readings)
        pending = row if pending is None else add_overlap(row, pending)
        counts = down[top:next_top, None] * across
        yield pending.map(partial(mean_rows, counts=counts))
        pending = pending.map(partial(rows_from, first=next_top - top))


def mean_rows(sums: Tensor, counts: Tensor) -> Tensor:
    """The upper left part of sums (b c h w) over its counts (h' w')."""
    height, width = counts.shape
    return sums[..., :height, :width] / counts


def rows_from(sums: Tensor, first: int) -> Tensor:
    return sums[..., first:, :]


def window_row(
    segmenter: Segmenter, band: Tensor, lefts: list[int], window: int, readings: Sequence[Reading]
) -> Maps:
    """Sums of the maps of the windows at ``lefts`` over a band (b 3 window w)."""
    total: Maps | None = None
    for left in lefts:
        maps = whole(segmenter, band[..., left : left + window], readings=readings)
        if total is None:
            total = maps.map(lambda part: part.new_zeros(*part.shape[:-1], band.shape[-1]))
        total.logits[..., left : left + window] += maps.logits
        total.scores[..., left : left + window] += maps.scores
    assert total is not None
    return total


def add_overlap(row: Maps, pending: Maps) -> Maps:
    """``row`` with the rows that windows further up have left over added at its top."""
    rest = pending.logits.shape[-2]
    row.logits[..., :rest, :] += pending.logits
    row.scores[..., :rest, :] += pending.scores
    return row


def window_starts(size: tuple[int, int], window: int, stride: int) -> tuple[list[int], list[int]]:
    """Tops and lefts of the windows over an image of ``size``."""
    if not 1 <= stride <= window:
        raise ValueError(f"window stride {stride} must be between 1 and the window size {window}")
    height, width = size
    return starts(height, window, stride), starts(width, window, stride)


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin so that they cover 0..length, the last one ending exactly there."""
    last = max(length - window, 0)
    return [*range(0, last, stride), last]


def coverage(begins: list[int], window: int, length: int) -> Tensor:
    """How many of the windows cover each position, (length,)."""
    counts = torch.zeros(length)
    for begin in begins:
        counts[begin : begin + window] += 1
    return counts


def next_multiple(length: int, divisor: int) -> int:
    return length + -length % divisor


def pad(images: Tensor, height: int, width: int) -> Tensor:
    """Images (b 3 h w) continued to the right and below by their border pixels."""
    below, right = height - images.shape[-2], width - images.shape[-1]
    return F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images


def upsample(maps: Tensor, size: tuple[int, int] | torch.Size, *, align_corners: bool = False) -> Tensor:
    """Maps (b c h w) at ``size`` in float32, see `resize`."""
    return resize(maps.float(), size, align_corners=align_corners)


def rows_at(maps: Maps, size: tuple[int, int]) -> Iterator[Maps]:
    """``maps`` resized to ``size`` in strips of rows, from top to bottom, each of a few million pixels."""
    height, width = size
    rows = max(1, STRIP_PIXELS // width)
    if rows >= height:
        yield maps.map(partial(upsample, size=size))
        return
    for top in range(0, height, rows):
        yield maps.map(partial(upsampled_rows, size=size, rows=slice(top, min(top + rows, height))))


def upsampled_rows(maps: Tensor, size: tuple[int, int], rows: "slice[int]") -> Tensor:
    """Some of the rows of ``upsample(maps, size)``, without the others: (b c rows w)."""
    height = maps.shape[-2]
    wanted = torch.arange(rows.start, rows.stop, device=maps.device)
    centres = ((wanted + 0.5) * (height / size[0]) - 0.5).clamp(0, height - 1)
    above = centres.long()
    below = (above + 1).clamp_max(height - 1)
    tall = torch.lerp(maps[..., above, :].float(), maps[..., below, :].float(), (centres - above)[:, None])
    return upsample(tall, (len(wanted), size[1]))


def forward(segmenter: Segmenter, images: Tensor) -> SegmenterOutput:
    """One pass in evaluation mode without gradients; neither mode nor state of the segmenter is touched.

    An output that is not finite is refused: its posterior is no number, and no threshold calls it unknown.
    """
    with torch.inference_mode():
        output = in_evaluation_mode(segmenter)(images)
    if not bool(output.logits.isfinite().all()):
        raise ValueError(NOT_FINITE)
    return output


def in_evaluation_mode(segmenter: Segmenter) -> Segmenter:
    """``segmenter`` itself if all of it is in evaluation mode, else a copy of its modules that is.

    The copy shares every parameter and buffer, so it costs no memory and sees what is trained later.
    Switching the mode of the model instead would disturb whoever else uses it at the same time.
    """
    if not any(part.training for part in segmenter.modules()):
        return segmenter
    twin = share_weights(segmenter).eval()
    assert isinstance(twin, type(segmenter))
    return twin
