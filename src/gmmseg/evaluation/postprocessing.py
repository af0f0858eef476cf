"""Optional, named steps after a score; figures are reported with and without them."""

import torch
from torch import Tensor
from torch.nn import functional as F


class GaussianSmoothing:
    """Scores blurred with a Gaussian of ``deviation`` pixels; the image is continued by its border pixels."""

    def __init__(self, deviation: float = 2.0) -> None:
        self.deviation = deviation
        self.name = f"smoothed_{deviation:g}"

    def __call__(self, scores: Tensor, predicted: Tensor) -> Tensor:
        """Scores (b h w) -> (b h w); the predicted labels (b h w) are not needed here."""
        reach = max(1, round(3 * self.deviation))
        offsets = torch.arange(-reach, reach + 1, dtype=scores.dtype, device=scores.device)
        kernel = (-0.5 * (offsets / self.deviation).square()).exp()
        kernel = kernel / kernel.sum()
        padded = F.pad(scores[:, None], (reach,) * 4, mode="replicate")
        return F.conv2d(F.conv2d(padded, kernel[None, None, None]), kernel[None, None, :, None])[:, 0]


class BoundarySuppression:
    """SML's iterative boundary suppression: near class boundaries, scores are replaced from further away.

    All networks are unsure where classes meet, which is no anomaly. Pixels within ``width`` of a boundary
    of the predicted labels that see settled ones within ``step`` pixels take their mean; then the boundary is
    taken ``step`` narrower, and so on, so that values walk in from both sides.
    """

    def __init__(self, width: int = 8, step: int = 2) -> None:
        self.width = width
        self.step = step
        self.name = f"boundary_suppressed_{width}"

    def __call__(self, scores: Tensor, predicted: Tensor) -> Tensor:
        """Scores and predicted labels (b h w) -> scores (b h w)."""
        edge = _boundaries(predicted)
        for width in range(self.width, 0, -self.step):
            unsettled = _dilated(edge, width)
            scores = _from_settled(scores, unsettled, self.step)
        return scores


def _boundaries(labels: Tensor) -> Tensor:
    """(b h w) float 1 where a pixel and a neighbour to its right or below differ, on both sides."""
    edge = torch.zeros(labels.shape, device=labels.device)
    across = (labels[:, :, 1:] != labels[:, :, :-1]).float()
    down = (labels[:, 1:] != labels[:, :-1]).float()
    edge[:, :, 1:] += across
    edge[:, :, :-1] += across
    edge[:, 1:] += down
    edge[:, :-1] += down
    return edge.clamp_max(1)


def _dilated(edge: Tensor, width: int) -> Tensor:
    """(b h w) float 1 within ``width`` - 1 pixels of an edge pixel; a width of 1 is the edge itself."""
    reach = width - 1
    return F.max_pool2d(edge[:, None], 2 * reach + 1, stride=1, padding=reach)[:, 0]


def _from_settled(scores: Tensor, unsettled: Tensor, reach: int) -> Tensor:
    """Unsettled scores replaced by the mean of the settled ones within ``reach``, where there are any."""
    settled = 1 - unsettled
    # infinite scores of unsettled pixels must not reach the sums as 0 x inf
    values = torch.where(settled > 0, scores, torch.zeros_like(scores))
    size = 2 * reach + 1
    share = F.avg_pool2d(settled[:, None], size, stride=1, padding=reach)[:, 0]
    total = F.avg_pool2d(values[:, None], size, stride=1, padding=reach)[:, 0]
    reachable = (unsettled > 0) & (share > 1e-6)
    return torch.where(reachable, total / share.clamp_min(1e-6), scores)
