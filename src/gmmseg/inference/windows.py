"""From a network's coarse maps to full-resolution ones, for a whole image at once or window by window.

Anomaly scores are read where the network speaks, at its own resolution, and their maps are upsampled.
Between two classes a pixel's evidence for either is interpolated down; its score would make every outline
of a known object strange.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture import anomaly_score
from gmmseg.models import Segmenter, SegmenterOutput

SMALLEST_SIDE = 32
"""The coarsest stride in use: an image of this size has at least one cell everywhere in a network."""


Reading = Callable[[SegmenterOutput], Tensor]
"""Makes one map (b h w) of an output at the network's resolution."""


def strangeness(output: SegmenterOutput) -> Tensor:
    """Higher = stranger, (b h w): from the evidence, or from the logits (max-logit) without mixtures."""
    scores = output.logits if output.evidence is None else output.evidence
    return anomaly_score(scores.movedim(1, -1))


@dataclass(frozen=True)
class Maps:
    """Full-resolution ``logits`` (b c h w), at the segmenter's temperature, and ``scores`` (b s h w), one for
    each reading asked for, of the output as it is."""

    logits: Tensor
    scores: Tensor

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


def whole(
    segmenter: Segmenter,
    images: Tensor,
    size: tuple[int, int] | None = None,
    readings: Sequence[Reading] = (strangeness,),
) -> Maps:
    """Maps of images (b 3 h w) in [0, 1] in one pass, at ``size`` (the images' own unless given)."""
    output, padded_size = padded_pass(segmenter, images)
    maps = Maps(output.logits / segmenter.temperature, _read_all(readings, output))
    return maps.map(partial(_unpadded, padded_size=padded_size, image_size=images.shape[-2:], size=size))


def whole_scores(
    segmenter: Segmenter, images: Tensor, size: tuple[int, int] | None, readings: Sequence[Reading]
) -> Tensor:
    """The scores (b s h w) of `whole` alone: logits of many classes take longest to upsample."""
    output, padded_size = padded_pass(segmenter, images)
    return _unpadded(_read_all(readings, output), padded_size, images.shape[-2:], size)


def padded_pass(segmenter: Segmenter, images: Tensor) -> tuple[SegmenterOutput, torch.Size]:
    """The output for images (b 3 h w) in [0, 1], and the size they were continued to for it.

    They are continued by their border pixels up to a multiple of the network's stride, so that the cells of
    its maps tile them exactly and the upsampled maps lie where the pixels are; and up to SMALLEST_SIDE, for
    networks whose deepest maps would otherwise be empty.
    """
    padded = pad(
        images, *(next_multiple(max(side, SMALLEST_SIDE), segmenter.stride) for side in images.shape[-2:])
    )
    return forward(segmenter, padded), padded.shape[-2:]


def _unpadded(
    coarse: Tensor, padded_size: torch.Size, image_size: torch.Size, size: tuple[int, int] | None
) -> Tensor:
    """Maps of padded images at the images' own size, or at ``size``."""
    full = upsample(coarse, padded_size)[..., : image_size[0], : image_size[1]]
    return full if size is None else upsample(full, size)


def _read_all(readings: Sequence[Reading], output: SegmenterOutput) -> Tensor:
    """(b s h w) at the network's resolution."""
    return torch.stack([_read(reading, output) for reading in readings], dim=1)


def _read(reading: Reading, output: SegmenterOutput) -> Tensor:
    scores = reading(output).float()
    if scores.shape != output.logits[:, 0].shape:
        name = getattr(reading, "name", "this score")
        raise ValueError(
            f"{name} gives {tuple(scores.shape)} where the network has {tuple(output.logits[:, 0].shape)} "
            "cells: it reads points, and this network's points are not its cells (Mask2Former's are queries)"
        )
    return scores


def sliding(
    segmenter: Segmenter,
    images: Tensor,
    window: int,
    stride: int,
    readings: Sequence[Reading] = (strangeness,),
) -> Maps:
    """Maps of images (b 3 h w) at their own size, the mean of all windows that see a pixel.

    Windows are ``window`` square and ``stride`` apart; the last of a row or column is moved back to end at
    the border. The mean is that of logits and of scores, for mixtures of log likelihoods: windows multiply
    their opinions and no single one can drown the rest. An image smaller than the window is continued by
    its border pixels.
    """
    strips = list(sliding_strips(segmenter, images, window, stride, readings))
    logits, scores = ([getattr(strip, name) for strip in strips] for name in ("logits", "scores"))
    return Maps(torch.cat(logits, dim=2), torch.cat(scores, dim=2))


def sliding_strips(
    segmenter: Segmenter,
    images: Tensor,
    window: int,
    stride: int,
    readings: Sequence[Reading] = (strangeness,),
) -> Iterator[Maps]:
    """What `sliding` returns, as strips of rows from top to bottom.

    A strip is handed out as soon as no window further down reaches it: memory is one row of windows,
    however tall the image.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"window stride {stride} must be between 1 and the window size {window}")
    height, width = images.shape[-2:]
    images = pad(images, max(height, window), max(width, window))
    tops, lefts = (starts(length, window, stride) for length in images.shape[-2:])
    across = coverage(lefts, window, images.shape[-1]).to(images.device)
    down = coverage(tops, window, images.shape[-2]).to(images.device)
    pending: Maps | None = None
    for top, next_top in zip(tops, [*tops[1:], images.shape[-2]]):
        row = window_row(segmenter, images[..., top : top + window, :], lefts, window, readings)
        pending = row if pending is None else add_overlap(row, pending)
        counts = down[top : min(next_top, height), None] * across
        yield pending.map(partial(mean_rows, counts=counts[:, :width]))
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


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin so that they cover 0..length, the last one ending exactly there."""
    regular = list(range(0, length - window, stride))
    return [*regular, length - window]


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


def upsample(maps: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Maps (b c h w) at ``size``, bilinear."""
    if maps.shape[-2:] == tuple(size):
        return maps
    return F.interpolate(maps.float(), size=tuple(size), mode="bilinear", align_corners=False)


def forward(segmenter: Segmenter, images: Tensor) -> SegmenterOutput:
    """One pass in evaluation mode without gradients; the segmenter is left in the mode it was in."""
    with evaluating(segmenter), torch.inference_mode():
        return segmenter(images)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and after it every submodule's own mode again (a frozen part stays frozen)."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
