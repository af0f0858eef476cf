"""Networks: image -> features -> evidence. Any segmentation network becomes generative here."""

from gmmseg.models.calibration_file import Calibration
from gmmseg.models.conversion import ConversionError, convert
from gmmseg.models.heads import HEAD_PRESETS, GMMHead, HeadSettings, SoftmaxHead, head_settings, make_head
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.outputs import SegmenterOutput
from gmmseg.models.pretrained import from_pretrained
from gmmseg.models.reference_import import import_reference
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.sources import SOURCES, build
from gmmseg.models.weights import WeightsError
from gmmseg.models.zoo import ZOO

__all__ = [
    "HEAD_PRESETS",
    "SOURCES",
    "ZOO",
    "Calibration",
    "ConversionError",
    "GMMHead",
    "HeadSettings",
    "InferenceSettings",
    "Segmenter",
    "SegmenterOutput",
    "SoftmaxHead",
    "WeightsError",
    "build",
    "convert",
    "from_pretrained",
    "head_settings",
    "import_reference",
    "make_head",
]
