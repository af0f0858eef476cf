"""Batches to checkpoint: losses weighed, optimizer and EM stepped, state kept.

What a loop of your own may want of it is named here; `gmmseg.training.trainer` is the loop of `gmmseg train`.
"""

from gmmseg.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from gmmseg.training.optim import (
    decline,
    freeze_backbone,
    learning_rate_factor,
    make_optimizer,
    make_schedule,
    parameter_groups,
)
from gmmseg.training.train_settings import TRAIN_PRESETS, TrainSettings

__all__ = [
    "TRAIN_PRESETS",
    "CheckpointError",
    "TrainSettings",
    "decline",
    "freeze_backbone",
    "learning_rate_factor",
    "load_checkpoint",
    "make_optimizer",
    "make_schedule",
    "parameter_groups",
    "save_checkpoint",
]
