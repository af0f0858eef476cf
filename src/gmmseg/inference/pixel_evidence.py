"""What the network says of one pixel: evidence of each class, the component it looks like most."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gmmseg.inference.predictor import Predictor, at_short_side
from gmmseg.inference.windows import fitting, forward, pad


@dataclass(frozen=True)
class PixelEvidence:
    """The cell of the network's maps that a pixel lies in.

    ``evidence`` is log p(cell given class) of each class, or, without mixtures, its logit: then
    ``generative`` is False. ``nearest``: the class with the most of it; ``component``: which of its
    components the cell looks like most, counted from 0, and ``components``, of how many; None without.
    """

    generative: bool
    evidence: tuple[float, ...]
    posterior: tuple[float, ...]
    nearest: int
    component: int | None
    components: int | None


@torch.no_grad()
def pixel_evidence(predictor: Predictor, pixels: Tensor, x: int, y: int) -> PixelEvidence:
    """What the network says of column x, row y of pixels (3 h w) in [0, 1].

    Of an image that is predicted window by window, one window with the pixel in its middle is looked at.
    """
    network = predictor.network
    window, row, column = _surroundings(predictor, pixels, x, y)
    padded = pad(window, *fitting((window.shape[-2], window.shape[-1]), network.stride))
    output = forward(network, padded)
    cells = output.logits.shape[-2:]
    row, column = (
        min(int((at + 0.5) * cells / side), cells - 1)
        for at, cells, side in zip((row, column), cells, padded.shape[-2:])
    )
    logits = output.logits[0, :, row, column].float()
    evidence = logits if output.evidence is None else output.evidence[0, :, row, column].float()
    nearest = int(evidence.argmax())
    component: int | None = None
    mixture = output.mixture
    if mixture is not None and output.points is not None:
        densities = mixture.log_density(output.points[:, :, row, column])[0] + mixture.log_weights
        component = int(densities[nearest].argmax())
    return PixelEvidence(
        output.evidence is not None,
        tuple(evidence.tolist()),
        tuple((logits / network.temperature).softmax(0).tolist()),
        nearest,
        component,
        None if component is None or mixture is None else mixture.num_components,
    )


def _surroundings(predictor: Predictor, pixels: Tensor, x: int, y: int) -> tuple[Tensor, int, int]:
    """What the network looks at (1 3 h w) for a pixel, and the pixel's row and column in it."""
    seen = at_short_side(pixels[None].to(predictor.device), predictor.inference.short_side)
    places = [
        min(int((at + 0.5) * new / old), new - 1)
        for at, new, old in zip((y, x), seen.shape[-2:], pixels.shape[-2:])
    ]
    if max(seen.shape[-2:]) <= predictor.whole_up_to:
        return seen, places[0], places[1]
    side = predictor.window
    starts = [max(0, min(at - side // 2, length - side)) for at, length in zip(places, seen.shape[-2:])]
    window = seen[..., starts[0] : starts[0] + side, starts[1] : starts[1] + side]
    return window, places[0] - starts[0], places[1] - starts[1]
