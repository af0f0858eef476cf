"""Predictions and labels -> numbers: exact protocols, constant memory, merged exactly across processes."""

from gmmseg.evaluation.calibration import CalibrationError
from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.pooled import EvaluationError
from gmmseg.evaluation.records import record_results
from gmmseg.evaluation.results import (
    anomaly_entry,
    build_results,
    closed_set_entry,
    load_results,
    write_results,
)
from gmmseg.evaluation.score_files import evaluate_score_files

__all__ = [
    "AnomalyCurve",
    "CalibrationError",
    "ComponentMetrics",
    "ConfusionMatrix",
    "EvaluationError",
    "anomaly_entry",
    "build_results",
    "closed_set_entry",
    "evaluate_score_files",
    "load_results",
    "record_results",
    "write_results",
]
