"""The method: a Gaussian mixture per class, fitted by online EM. Points and labels only.

Read `gaussian` (densities), `coordinates` (features to points), `mixture` (the state), `sinkhorn` and `steps`
(E and M), `memory`, `em` (the optimizer).
"""

from gmmseg.mixture.coordinates import Coordinates, Plain, Pole, Sphere, WhitenedSphere, make_coordinates
from gmmseg.mixture.em import OnlineEM
from gmmseg.mixture.em_settings import PRESETS, EMSettings
from gmmseg.mixture.gaussian import anomaly_score, class_evidence, log_density, log_posterior
from gmmseg.mixture.links import AffineLink, BayesLink, ClassNormLink, make_link
from gmmseg.mixture.memory import DecayedStatistics, FeatureQueue
from gmmseg.mixture.mixture import ClassMixture, DiscriminativeMixture
from gmmseg.mixture.products import RowProduct
from gmmseg.mixture.sinkhorn import balanced_assignment, plain_assignment

__all__ = [
    "PRESETS",
    "AffineLink",
    "BayesLink",
    "ClassMixture",
    "ClassNormLink",
    "Coordinates",
    "DecayedStatistics",
    "DiscriminativeMixture",
    "EMSettings",
    "FeatureQueue",
    "OnlineEM",
    "Plain",
    "Pole",
    "RowProduct",
    "Sphere",
    "WhitenedSphere",
    "anomaly_score",
    "balanced_assignment",
    "class_evidence",
    "log_density",
    "log_posterior",
    "make_coordinates",
    "make_link",
    "plain_assignment",
]
