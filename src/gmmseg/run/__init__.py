"""The composition root: configuration in, objects built, work done. One page per workflow.

`train` and `demo` make models, `convert` takes one from elsewhere, `adapt` makes a softmax model generative
in minutes, `fit` gives a trained model mixtures, `calibrate` and `evaluate` judge one, `report` shows it,
`monitor` watches a stream with it; `building` holds the parts of a run and `runs` what a finished one has
left behind.
"""

from gmmseg.run.adapt import Adaptation, AdaptSettings, Clock, adapt
from gmmseg.run.building import (
    hidden_data,
    join_processes,
    make_crops,
    make_em,
    make_loader,
    make_segmenter,
    make_trainer,
    training_data,
    validate,
    validation_data,
)
from gmmseg.run.calibrate import calibrate, calibrate_folders
from gmmseg.run.convert import convert_source
from gmmseg.run.evaluate import Judging, evaluate, make_scores
from gmmseg.run.fit import can_be_split, fit_density, fit_head
from gmmseg.run.monitor import BrokenImage, open_monitor, stream, watch
from gmmseg.run.runs import judged_sets, open_model, run_config
from gmmseg.run.train import train

__all__ = [
    "AdaptSettings",
    "Adaptation",
    "BrokenImage",
    "Clock",
    "Judging",
    "adapt",
    "calibrate",
    "calibrate_folders",
    "can_be_split",
    "convert_source",
    "evaluate",
    "fit_density",
    "fit_head",
    "hidden_data",
    "join_processes",
    "judged_sets",
    "make_crops",
    "make_em",
    "make_loader",
    "make_scores",
    "make_segmenter",
    "make_trainer",
    "open_model",
    "open_monitor",
    "run_config",
    "stream",
    "train",
    "training_data",
    "validate",
    "validation_data",
    "watch",
]
