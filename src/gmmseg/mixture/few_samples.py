"""The mixture of one more class, from as few points as there are: EM, then shrinkage."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gmmseg.bounds import Count, NotNegative, check_bounds
from gmmseg.mixture.mixture import ClassMixture

_PASSES = 30


@dataclass(frozen=True)
class FewSamples:
    """How much the points of a new class are believed.

    Points are cells of a few images and much alike, so that hundreds of them still say little.
    """

    points_per_component: Count = 50
    """A class gets one component for each time it has this many points, one at least."""
    images_per_component: Count = 4
    """Nor does it get more than one for each time its points are of this many images."""
    mean_points: NotNegative = 200.0
    """The mean of the class counts as much as this many points of a component, for the component's mean."""
    variance_points: NotNegative = 2000.0
    """The pooled variance of the other classes counts as this many points of a component."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def components(self, points: int, images: int | None = None) -> int:
        """How many components so many points can tell apart, of so many images where that is known."""
        enough = points // self.points_per_component
        if images is not None:
            enough = min(enough, images // self.images_per_component)
        return max(1, enough)


AS_CHOSEN = FewSamples()


class NewClass(NamedTuple):
    """Means and variances (k d) and log weights (k) of a class that no mixture has yet."""

    means: Tensor
    variances: Tensor
    log_weights: Tensor


@torch.no_grad()
def fit_class(
    points: Tensor,
    beside: ClassMixture,
    *,
    images: int | None = None,
    components: int | None = None,
    settings: FewSamples = AS_CHOSEN,
    seed: int = 0,
) -> NewClass:
    """The mixture of points (n d), all of one class, in the coordinates of the mixtures ``beside`` it.

    ``components``: at most so many; by default as many as the others have. Few points get fewer, and so do
    points of few ``images``, where it is known of how many they are. Each component is then drawn towards the
    mean of the class, and its variance towards the pooled variance of the others, the more the fewer points
    it has.
    """
    beside.refuse_em()
    labels = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    beside.check(points, labels)
    if len(points) == 0:
        raise ValueError("there is no point of the new class to fit a mixture on")
    most = beside.num_components if components is None else components
    k = min(most, settings.components(len(points), images))
    fitted = ClassMixture(1, k, beside.dim, winner=beside.winner, coordinates=beside.coordinates)
    fitted.to(points.device).fit(points, labels, passes=_PASSES, variance_floor=1e-6, seed=seed)
    return _shrunk(fitted, points.float(), pooled_variance(beside), settings)


def pooled_variance(mixture: ClassMixture) -> Tensor:
    """The variance (d) within components, its mean over the fitted classes of ``mixture``."""
    known = mixture.fitted
    if not bool(known.any()):
        raise ValueError("the mixtures have never been fitted: train them first, then add a class")
    weights = mixture.log_weights[known].softmax(-1)[..., None]
    return (weights * mixture.variances[known]).sum(1).mean(0)


def _shrunk(fitted: ClassMixture, points: Tensor, pooled: Tensor, settings: FewSamples) -> NewClass:
    """Means and variances as if there had been some more points, which say what is usual."""
    log_weights = fitted.log_weights[0]
    count = len(points) * log_weights.exp()[:, None]
    of_class = points.mean(0)
    means = (count * fitted.means[0] + settings.mean_points * of_class) / (count + settings.mean_points)
    offsets = (fitted.means[0] - means).square()  # points now lie about another mean
    own = fitted.variances[0] + offsets
    variances = (count * own + settings.variance_points * pooled) / (count + settings.variance_points)
    return NewClass(fitted.coordinates.valid_means(means), variances, log_weights.clone())
