"""Calibration: a trained model and labelled images in, what they tell about its scores out."""

import filecmp
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gmmseg import distributed
from gmmseg.evaluation.evaluator import (
    check_classes,
    shard,
)
from gmmseg.inference import Choices, Predictor, choose
from gmmseg.models import from_pretrained
from gmmseg.models.saving import WEIGHTS_FILE
from gmmseg.run.runs import judged_sets, open_model, run_folder_of, weights_of
from gmmseg.samples import Progress
from gmmseg.training.run_folder import locked


def settle(
    folders: Sequence[Path],
    dataset: Any,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[Path, Choices]:
    """Find threshold, temperature and typical evidence of saved weights on a labelled set; saved with them.

    Images are seen as `gmmseg predict` sees them. Folders that are not there are passed over, and folders
    with the same weights share their choices. Returns what was chosen for each. With several processes each
    goes through its share of the images, and the first one writes.
    """
    chosen: dict[Path, Choices] = {}
    for folder in (each for each in folders if distributed.any_process(each.is_dir())):
        model = open_model(folder)
        check_classes(dataset, model.num_classes)
        model.temperature = 1.0
        same = [
            choices
            for known, choices in chosen.items()
            if filecmp.cmp(known / WEIGHTS_FILE, folder / WEIGHTS_FILE, shallow=False)
        ]
        chosen[folder] = (
            same[0] if same else choose(Predictor(model, device=device), shard(dataset, progress))
        )
    # Written only now: until here other processes may read the files.
    distributed.wait_for_all()
    for folder, choices in chosen.items() if distributed.rank() == 0 else ():
        model = from_pretrained(folder)
        choices.give_to(model)
        model.save_pretrained(folder)
    distributed.wait_for_all()
    return chosen


def calibrate(
    folder: Path, dataset: Any, *, device: torch.device | str | None = None, progress: Progress | None = None
) -> dict[Path, Choices]:
    """`settle` for the weights of a run folder, without the classes it held out, or for a folder of them.

    FolderInUse where a process is writing there.
    """
    dataset = judged_sets(folder, dataset)[0]
    with locked(run_folder_of(folder) or folder):
        return settle(weights_of(folder) or [folder], dataset, device=device, progress=progress)
