"""Predictions and labels -> numbers: exact protocols, constant memory, merged exactly across processes."""

from gmmseg.evaluation.calibration import CalibrationError
from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.pooled import EvaluationError

__all__ = ["AnomalyCurve", "CalibrationError", "ComponentMetrics", "ConfusionMatrix", "EvaluationError"]
