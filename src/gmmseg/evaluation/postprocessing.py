"""SML's steps after a score (Jung et al., Standardized Max Logits, ICCV 2021), with its authors' settings.

Optional and named: figures are reported with and without them. Both want maps at full resolution.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


class BoundarySuppression:
    """Near class boundaries, scores are replaced by their neighbours' from further inside the classes.

    All networks are unsure where classes meet, which is no anomaly. The boundary of the predicted labels is
    widened to a diamond of radius ``width`` - 1 around each of its pixels. Each pixel on it takes the mean
    of those in its 3x3 neighbourhood that are not on it, if there are any. Then the boundary is taken one
    pixel narrower, and so on, so that values walk in from both sides; the last of the ``width`` rounds fills
    the boundary itself.
    """

    def __init__(self, width: int = 4) -> None:
        self.width = width

    def __call__(self, scores: Tensor, predicted: Tensor) -> Tensor:
        """Scores and predicted labels (b h w) -> scores (b h w)."""
        widened = [_boundaries(predicted)]
        for _ in range(self.width - 1):
            widened.append(_diamond_dilated(widened[-1]))
        for boundary in reversed(widened):
            scores = _from_inside(scores, boundary)
        return scores


class DilatedSmoothing:
    """Scores averaged by a 7x7 Gaussian of deviation 1 whose taps lie ``dilation`` pixels apart.

    The image is continued by its border pixels.
    """

    reach = 3
    deviation = 1.0

    def __init__(self, dilation: int = 6) -> None:
        self.dilation = dilation

    def __call__(self, scores: Tensor, predicted: Tensor) -> Tensor:
        """Scores (b h w) -> (b h w); the predicted labels (b h w) are not needed here."""
        offsets = torch.arange(-self.reach, self.reach + 1, dtype=scores.dtype, device=scores.device)
        taps = (-0.5 * (offsets / self.deviation).square()).exp()
        taps = taps / taps.sum()
        padded = F.pad(scores[:, None], (self.reach * self.dilation,) * 4, mode="replicate")
        rows = F.conv2d(padded, taps[None, None, None], dilation=self.dilation)
        return F.conv2d(rows, taps[None, None, :, None], dilation=self.dilation)[:, 0]


def _boundaries(labels: Tensor) -> Tensor:
    """(b h w) float 1 where the largest label of a pixel and its four neighbours is not the smallest of its
    3x3 neighbourhood: on both sides of a boundary, and at corners on the side of the larger label."""
    ids = labels.float()[:, None]
    smallest = -F.max_pool2d(-ids, 3, stride=1, padding=1)
    return (_largest_of_cross(ids) != smallest).float()[:, 0]


def _diamond_dilated(mask: Tensor) -> Tensor:
    """Mask (b h w) of 0 and 1, grown by the four neighbours of its pixels."""
    return _largest_of_cross(mask[:, None])[:, 0]


def _largest_of_cross(maps: Tensor) -> Tensor:
    """(b 1 h w) largest value of each pixel and its four neighbours."""
    down = F.max_pool2d(maps, (3, 1), stride=1, padding=(1, 0))
    across = F.max_pool2d(maps, (1, 3), stride=1, padding=(0, 1))
    return torch.maximum(down, across)


def _from_inside(scores: Tensor, boundary: Tensor) -> Tensor:
    """Scores on the boundary (b h w) replaced by the 3x3 mean of those off it, where there are any.

    The image is continued by its border pixels.
    """
    inside = boundary == 0
    # infinite scores on the boundary must not reach the sums as 0 x inf
    values = torch.where(inside, scores, torch.zeros_like(scores))
    total, count = (
        9 * F.avg_pool2d(F.pad(part[:, None], (1,) * 4, mode="replicate"), 3, stride=1)[:, 0]
        for part in (values, inside.to(scores.dtype))
    )
    count = count.round()
    return torch.where(~inside & (count > 0), total / count.clamp_min(1), scores)
