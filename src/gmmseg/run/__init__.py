"""The composition root: configuration in, objects built, work done. One page per workflow.

`train` and `demo` make models, `convert` takes one from elsewhere, `adapt` makes a softmax model generative
in minutes, `fit` gives a trained model mixtures, `class_editing` gives it another class, `exemplar_index` and
`explanation` say why a pixel is what it is, `calibrate` and `evaluate` judge one, `report` shows it,
`monitor` watches a stream with it, `export` writes it for other runtimes, `bench` measures its speed;
`building` holds the parts of a run and `runs` what a finished one has left behind.
"""

from gmmseg.run.adapt import Adaptation, AdaptSettings, Clock, adapt
from gmmseg.run.bench import Race, bench, fitted_looking
from gmmseg.run.building import (
    device_named,
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
from gmmseg.run.class_editing import AddedClass, add_class
from gmmseg.run.convert import convert_source
from gmmseg.run.evaluate import Judging, evaluate, make_scores
from gmmseg.run.exemplar_index import build_exemplars, exemplars_of, find_exemplars
from gmmseg.run.explanation import write_explanation
from gmmseg.run.export import export_int8, export_model, open_predictor
from gmmseg.run.fit import can_be_split, fit_density, fit_head, way_to_fit
from gmmseg.run.monitor import BrokenImage, open_monitor, stream, watch
from gmmseg.run.resuming import machine_to_train_on
from gmmseg.run.runs import (
    judged_sets,
    matched_classes,
    open_model,
    open_named,
    refresh_cards,
    run_config,
    whole_validation_set,
)
from gmmseg.run.train import train

__all__ = [
    "AdaptSettings",
    "Adaptation",
    "AddedClass",
    "BrokenImage",
    "Clock",
    "Judging",
    "Race",
    "adapt",
    "add_class",
    "bench",
    "build_exemplars",
    "calibrate",
    "calibrate_folders",
    "can_be_split",
    "convert_source",
    "device_named",
    "evaluate",
    "exemplars_of",
    "export_int8",
    "export_model",
    "find_exemplars",
    "fit_density",
    "fit_head",
    "fitted_looking",
    "hidden_data",
    "join_processes",
    "judged_sets",
    "machine_to_train_on",
    "make_crops",
    "make_em",
    "make_loader",
    "make_scores",
    "make_segmenter",
    "make_trainer",
    "matched_classes",
    "open_model",
    "open_monitor",
    "open_named",
    "open_predictor",
    "refresh_cards",
    "run_config",
    "stream",
    "train",
    "training_data",
    "validate",
    "validation_data",
    "watch",
    "way_to_fit",
    "whole_validation_set",
    "write_explanation",
]
