"""Calibration: a trained model and labelled images in, calibration.json beside its weights out."""

from collections.abc import Sequence
from pathlib import Path

import torch

from gmmseg import distributed, inference
from gmmseg.inference import FalseAlarms, Predictor
from gmmseg.models import Calibration
from gmmseg.models.calibration_file import refuse_odd_calibration, write_calibration
from gmmseg.models.saving import digest, refresh_card
from gmmseg.run.runs import judged_sets, open_model, run_folder_of, weights_of
from gmmseg.samples import FingerprintedDataset, Progress, SegmentationDataset
from gmmseg.training.run_folder import locked


def calibrate_folders(
    folders: Sequence[Path],
    dataset: SegmentationDataset,
    *,
    false_alarms: FalseAlarms | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[Path, Calibration]:
    """Calibrate saved weights on a labelled set and write what was found beside each; also returns it.

    ``false_alarms``: what thresholds promise, see `gmmseg.inference.calibrate`. Images are looked at as
    `gmmseg predict` does. Folders that are not there are passed over, and folders
    with the same weights share their calibration. With several processes each goes through its part of the
    images, and the first one writes.
    """
    for folder in folders:
        refuse_odd_calibration(folder)  # before all images are gone through
    found: dict[Path, Calibration] = {}
    for folder in (each for each in folders if distributed.any_process(each.is_dir())):
        model = open_model(folder, calibrated=False)  # an earlier one has no say, and may be broken
        weights = digest(model)
        same = [known for known in found.values() if known.weights == weights]
        found[folder] = (
            same[0]
            if same
            else inference.calibrate(
                Predictor(model, device=device), dataset, false_alarms=false_alarms, progress=progress
            )
        )
    # Written only now: until here other processes may read the folders.
    distributed.wait_for_all()
    for folder, calibration in found.items() if distributed.rank() == 0 else ():
        write_calibration(calibration, folder)
        refresh_card(folder)
    distributed.wait_for_all()
    return found


def calibrate(
    folder: Path,
    dataset: FingerprintedDataset,
    *,
    false_alarms: FalseAlarms | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[Path, Calibration]:
    """`calibrate_folders` for the weights of a run folder, without the classes it held out, or for a folder
    of weights.

    FolderInUse where a process is writing there.
    """
    known = judged_sets(folder, dataset)[0]
    with locked(run_folder_of(folder) or folder):
        return calibrate_folders(
            weights_of(folder) or [folder],
            known,
            false_alarms=false_alarms,
            device=device,
            progress=progress,
        )
