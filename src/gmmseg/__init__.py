"""Segmentation that knows what it does not know: Gaussian mixture classifiers for any network.

Importing this package loads torch and nothing heavier; the names below are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gmmseg import torchvision_repair

torchvision_repair.install()

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AnomalyCurve",
    "ClassMixture",
    "EMSettings",
    "FalseAlarms",
    "GMMHead",
    "HeadSettings",
    "OnlineEM",
    "Prediction",
    "Predictor",
    "Segmenter",
    "SoftmaxHead",
    "__version__",
    "build",
    "calibrate",
    "convert",
    "fit",
    "from_pretrained",
    "keep_freed_memory",
    "open_dataset",
]

if TYPE_CHECKING:  # what editors and type checkers see
    from gmmseg.allocator import keep_freed_memory
    from gmmseg.data import open_dataset
    from gmmseg.evaluation import AnomalyCurve
    from gmmseg.inference import FalseAlarms, Prediction, Predictor, calibrate
    from gmmseg.mixture import PRESETS, ClassMixture, EMSettings, OnlineEM
    from gmmseg.models import GMMHead, HeadSettings, Segmenter, SoftmaxHead, build, from_pretrained
    from gmmseg.models.conversion import convert
    from gmmseg.run.fit import fit
else:  # the same names, each loaded when first used
    _ROOMS = {
        "gmmseg.allocator": ("keep_freed_memory",),
        "gmmseg.data": ("open_dataset",),
        "gmmseg.evaluation": ("AnomalyCurve",),
        "gmmseg.inference": ("FalseAlarms", "Prediction", "Predictor", "calibrate"),
        "gmmseg.mixture": ("PRESETS", "ClassMixture", "EMSettings", "OnlineEM"),
        "gmmseg.models": (
            *("GMMHead", "HeadSettings", "Segmenter", "SoftmaxHead"),
            *("build", "convert", "from_pretrained"),
        ),
        "gmmseg.run.fit": ("fit",),
    }
    _HOMES = {name: room for room, names in _ROOMS.items() for name in names}

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'gmmseg' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(__all__)
