"""A density beside the head: what the backbone itself saw of each class, whatever the head was trained for.

The features before a classifier are trained to tell the classes apart, and lose what does not help with it.
The backbone's own maps have kept it, so that something unknown looks less like a known class there.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from gmmseg.bounds import Count, Ge, Le, check_bounds
from gmmseg.mixture import ClassMixture, WhitenedSphere
from gmmseg.mixture.class_statistics import ClassSample, ClassSums
from gmmseg.models.features import Features, SplitFeatures

SHRINKAGE = 0.5
"""Added to all correlations within classes: of hundreds of channels, the smallest are noise."""
VARIANCE_FLOOR = 1e-4
_MOST_CHANNELS = 1 << 14


@dataclass(frozen=True)
class DensitySettings:
    """What it takes to build a `CellDensity` again: Gaussians per class, channels of the maps it reads."""

    components: Count
    channels: Annotated[int, Ge(1), Le(_MOST_CHANNELS)]

    def __post_init__(self) -> None:
        check_bounds(self)


class CellDensity(nn.Module):
    """Maps (b f h w) -> log p(cell given class), (b c h w): mixtures on a sphere, whitened within classes."""

    def __init__(self, num_classes: int, settings: DensitySettings) -> None:
        super().__init__()
        self.settings = settings
        self.coordinates = WhitenedSphere(settings.channels + 1)
        # Its own coordinates are plain: a mean inside the sphere says how far apart its points lie.
        self.mixture = ClassMixture(num_classes, settings.components, settings.channels + 1, winner=False)

    def forward(self, maps: Tensor) -> Tensor:
        b, f, h, w = maps.shape
        rows = maps.permute(0, 2, 3, 1).reshape(-1, f)
        evidence = self.mixture(self.coordinates(rows))
        # A class of which no cell was seen must not make any cell look familiar.
        evidence = evidence.masked_fill(~self.mixture.fitted, -torch.inf)
        return evidence.unflatten(0, (b, h, w)).movedim(-1, 1)

    @torch.no_grad()
    def fit_(self, sums: ClassSums, kept: ClassSample, *, passes: int) -> list[float]:
        """Whiten by ``sums``, then EM on the ``kept`` cells; returns the mean log-likelihood at each pass."""
        self.coordinates.whiten_channels_(sums.centre(), sums.within(), SHRINKAGE)
        cells, labels = kept.points_and_labels()
        device = self.mixture.means.device
        points = torch.cat([self.coordinates(part.to(device)) for part in cells.split(1 << 14)])
        return self.mixture.fit(points, labels.to(device), passes=passes, variance_floor=VARIANCE_FLOOR)


def maps_of_density(
    extractor: nn.Module,
    features: Features,
    maps: tuple[Tensor, ...] | None,
    image_size: tuple[int, int],
) -> Tensor:
    """What a density reads of images of a size (H, W), (b f h w), given what `extracted` returns of them.

    The backbone's maps, joined, or the features for the head where the network cannot be split.
    """
    if maps is None:
        return features.main
    assert isinstance(extractor, SplitFeatures)
    return extractor.joined_maps(maps, image_size)
