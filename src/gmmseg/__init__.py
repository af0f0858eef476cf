"""Segmentation that knows what it does not know: Gaussian mixture classifiers for any network.

Importing this package loads torch and nothing heavier; the names below are fetched when first used.
"""

from importlib import import_module
from typing import Any

from gmmseg import torchvision_repair

torchvision_repair.install()

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOMES = {
    "ClassMixture": "gmmseg.mixture",
    "OnlineEM": "gmmseg.mixture",
    "Segmenter": "gmmseg.models",
    "GMMHead": "gmmseg.models",
    "SoftmaxHead": "gmmseg.models",
    "convert": "gmmseg.models",
    "build": "gmmseg.models",
    "from_pretrained": "gmmseg.models",
    "Predictor": "gmmseg.inference",
    "Prediction": "gmmseg.inference",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gmmseg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
