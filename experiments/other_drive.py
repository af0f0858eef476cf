"""Models judged on the drive of CamVid train that they were not trained on, some classes hidden."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from camvid import split_by_drive
from gmmseg import run
from gmmseg.config import Config, DataSettings, load_config
from gmmseg.inference import Predictor, calibrate
from gmmseg.models import InferenceSettings, Segmenter


class OtherDrive:
    """CamVid by drives, laid out in ``folder``; ``arguments`` say where CamVid and the weights are."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.camvid, self.weights = arguments.camvid, arguments.weights
        self.root = split_by_drive(arguments.camvid, folder)

    def config(self, overrides: list[str]) -> Config:
        """The configuration of a run on the drives to train on."""
        return load_config("camvid", [f"data.root={self.root}", f"model.weights={self.weights}", *overrides])

    def results(
        self, model: Segmenter, data: DataSettings, scores: list[str], *, short_side: int = 360
    ) -> dict[str, Any]:
        """What `run.evaluate` finds of the known classes and of the hidden ones, images at a shorter side.

        The model is calibrated on CamVid val for that side.
        """
        model.inference = InferenceSettings(short_side=short_side)
        val = run.validation_data(replace(data, root=str(self.camvid)))
        assert val is not None
        model.calibration = calibrate(Predictor(model), val)
        sets = [run.validation_data(data), run.hidden_data(data, "val")]
        return run.evaluate(model, "model", sets, run.Judging(scores))
