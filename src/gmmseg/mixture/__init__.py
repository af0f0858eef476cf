"""The method: a Gaussian mixture per class, fitted by online EM. Points and labels only.

Read `gaussian` (densities), `sinkhorn` (E-step), `memory`, `mixture` (the state), `em` (the optimizer).
"""

from gmmseg.mixture.em import OnlineEM
from gmmseg.mixture.em_settings import PRESETS, EMSettings
from gmmseg.mixture.gaussian import anomaly_score, class_evidence, log_density, log_posterior
from gmmseg.mixture.links import AffineLink, BayesLink, ClassNormLink, make_link
from gmmseg.mixture.memory import DecayedStatistics, FeatureQueue
from gmmseg.mixture.mixture import ClassMixture, DiscriminativeMixture
from gmmseg.mixture.sinkhorn import balanced_assignment, plain_assignment

__all__ = [
    "PRESETS",
    "AffineLink",
    "BayesLink",
    "ClassMixture",
    "ClassNormLink",
    "DecayedStatistics",
    "DiscriminativeMixture",
    "EMSettings",
    "FeatureQueue",
    "OnlineEM",
    "anomaly_score",
    "balanced_assignment",
    "class_evidence",
    "log_density",
    "log_posterior",
    "make_link",
    "plain_assignment",
]
