"""From a segmenter and images to predictions, thresholds and pictures."""

from gmmseg.images import ImageError, load_image
from gmmseg.inference.calibrating import calibrate
from gmmseg.inference.explaining import Explanation, explain
from gmmseg.inference.exported_predictor import ExportedPrediction, ExportedPredictor
from gmmseg.inference.exporting import ExportError, ExportReport, export, open_exported
from gmmseg.inference.image_maps import ImageMaps, Meaning
from gmmseg.inference.object_files import ObjectFiles
from gmmseg.inference.objects import UnknownObject, unknown_objects
from gmmseg.inference.predict_files import PredictSummary, Work, predict_files
from gmmseg.inference.prediction import Prediction
from gmmseg.inference.predictor import Predictor
from gmmseg.inference.thresholds import ScoreHistogram
from gmmseg.inference.tracking import ObjectTracker
from gmmseg.inference.watching import Monitor, Observation
from gmmseg.inference.windows import Maps, sliding, whole
from gmmseg.models.exemplars import Exemplar
from gmmseg.models.false_alarms import FalseAlarms

__all__ = [
    "Exemplar",
    "Explanation",
    "ExportError",
    "ExportReport",
    "ExportedPrediction",
    "ExportedPredictor",
    "FalseAlarms",
    "ImageError",
    "ImageMaps",
    "Maps",
    "Meaning",
    "Monitor",
    "ObjectFiles",
    "ObjectTracker",
    "Observation",
    "PredictSummary",
    "Prediction",
    "Predictor",
    "ScoreHistogram",
    "UnknownObject",
    "Work",
    "calibrate",
    "explain",
    "export",
    "load_image",
    "open_exported",
    "predict_files",
    "sliding",
    "unknown_objects",
    "whole",
]
