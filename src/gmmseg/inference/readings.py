"""Anomaly scores that prediction itself shows or is made of: higher = stranger, always."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from gmmseg.mixture import anomaly_score
from gmmseg.models.calibration_file import FUSED, Calibration, ScoreMoments


class Logits(Protocol):
    """What energy reads: logits (b c h w)."""

    @property
    def logits(self) -> Tensor: ...


class DensityEvidence(Protocol):
    """What density reads: log p(cell given class), (b c h w), of the density beside a head; None without."""

    @property
    def density_evidence(self) -> Tensor | None: ...


class LogitsAndDensity(Logits, DensityEvidence, Protocol):
    """What both together read."""


class Energy:
    """-logsumexp_c logit."""

    name = "energy"

    def __call__(self, output: Logits) -> Tensor:
        return -output.logits.float().logsumexp(1)


class Density:
    """-max_c log p(cell given c) of the density beside the head (`gmmseg fit`)."""

    name = "density"

    def __call__(self, output: DensityEvidence) -> Tensor:
        if output.density_evidence is None:
            raise ValueError(
                f"{self.name}: this model has no density beside its head; "
                "gmmseg fit MODEL --data NAME:ROOT:train --out DIR makes one"
            )
        return anomaly_score(output.density_evidence.float().movedim(1, -1))


class Fused:
    """Energy plus density, each less its mean and over its deviation on known cells.

    What the head was trained to tell apart and what the backbone saw are strange in different places; on one
    scale, either speaks. ``moments``: of both parts, from the model's calibration.
    """

    name = FUSED
    parts = (Energy(), Density())

    def __init__(self, moments: Mapping[str, ScoreMoments] | None = None) -> None:
        missing = [part.name for part in self.parts if part.name not in (moments or {})]
        if moments is None or missing:
            raise ValueError(
                f"{self.name}: the usual {' and '.join(missing)} of known cells is not known yet; "
                "gmmseg calibrate MODEL --data NAME:ROOT:val finds it, once gmmseg fit has made the density"
            )
        self.moments = moments

    def __call__(self, output: LogitsAndDensity) -> Tensor:
        energy, density = (
            (part(output) - self.moments[part.name].mean) / self.moments[part.name].deviation
            for part in self.parts
        )
        return energy + density


def fused_of(calibration: Calibration | None) -> Fused | None:
    """The fused score, where a calibration says that it is what a model shows."""
    if calibration is None or calibration.score != FUSED:
        return None
    return Fused(calibration.moments)
