"""Training: configuration in, a run folder out. Read this to learn the workflow."""

import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from gmmseg import distributed
from gmmseg.atomic import write_bytes
from gmmseg.config import Config, dump_config
from gmmseg.distributed import Say
from gmmseg.models import Calibration, Segmenter
from gmmseg.models.saving import CONFIG_FILE, RUN_PARTS, WEIGHTS_FILE
from gmmseg.run.building import (
    make_crops,
    make_loader,
    make_segmenter,
    make_trainer,
    must_use_cpu,
    refuse_unlabelled,
    training_data,
    validation_data,
)
from gmmseg.run.calibrate import calibrate_folders
from gmmseg.run.exemplar_index import build_exemplars
from gmmseg.run.fit import add_densities
from gmmseg.run.resuming import check_resumable, describe_run
from gmmseg.run.runs import open_model
from gmmseg.run.telling import closing, header
from gmmseg.samples import FingerprintedDataset, SegmentationDataset
from gmmseg.training.cached_crops import FOLDER, CachedCrops, remove_crops
from gmmseg.training.checkpoint import (
    CheckpointError,
    TrainingState,
    find_checkpoint,
    load_checkpoint,
    named_checkpoint,
    resume_command,
    set_newer_aside,
)
from gmmseg.training.run_folder import locked, refuse_work
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Interrupted, Trainer

FINISHED_FILE = "finished.json"


def train(
    config: Config,
    folder: Path,
    *,
    resume: Path | None = None,
    cpu: bool = False,
    crops_in: Path | None = None,
    say: Say | None = None,
    tell: Say | None = None,
) -> Path:
    """Train what ``config`` says in the run folder ``folder``; returns the folder of the exported weights.

    It then holds config.yaml, log.jsonl, checkpoints/, best/ and final/, both calibrated. ``resume``: a run
    folder, whose newest checkpoint is taken (only ``folder`` itself may hold none yet), or a checkpoint file.
    Cached crops stay in ``crops_in`` for other runs, or are removed in the end. ``say`` is told of what is
    unusual, ``tell`` what is trained and its outcome."""
    accelerator = Accelerator(mixed_precision=config.train.precision, cpu=cpu or must_use_cpu())
    say, tell = distributed.said_once(say), distributed.said_once(tell)
    set_seed(config.train.seed)
    dataset, validation = training_data(config.data), validation_data(config.data)
    refuse_unlabelled(dataset)
    about = describe_run(config, dataset, accelerator.num_processes)
    with locked(folder):
        state = _state_to_go_on_from(resume, folder, about, say)
        if state is not None and _is_finished(folder, state, config):
            say(f"{folder}: this run is finished, at step {state['step']}; nothing is written")
            _remove_crops(folder)
            return folder / "final"
        crops = make_crops(config, crops_in or folder, dataset)
        segmenter = make_segmenter(config, dataset).to(accelerator.device)
        loader = make_loader(config, dataset, folder, accelerator, crops, 1 + len(segmenter.learning))
        trainer = make_trainer(config, segmenter, loader, accelerator, folder, validation, about, crops)
        _restore(trainer, state, say)
        tell(header(config, dataset, validation, trainer))
        _cache(crops, trainer, say)
        _write_config(config, folder)
        _export(_run(trainer, cpu), folder, dataset, config.train, say)
        found = _finish(trainer.step, folder, validation, accelerator.device)
        tell(closing(config, folder, validation, found))
    return folder / "final"


def _cache(crops: CachedCrops | None, trainer: Trainer, say: Say) -> None:
    """Compute the maps of the crops, where the run is to be trained on some."""
    if crops is not None:
        crops.make(trainer.segmenter, autocast=trainer.accelerator.autocast, say=say)


def _write_config(config: Config, folder: Path) -> None:
    """What a resumed run is started with, and what says what the run was."""
    if distributed.rank() == 0:
        write_bytes(folder / "config.yaml", dump_config(config).encode())


def _run(trainer: Trainer, cpu: bool) -> Segmenter:
    """`Trainer.run`, where a run that was asked to stop also says how to go on with it."""
    try:
        return trainer.run()
    except Interrupted as stopped:
        processes = trainer.accelerator.num_processes
        where = f" on {processes} processes" if processes > 1 else ""
        command = resume_command(trainer.folder, "--resume", *(["--cpu"] if cpu else []))
        raise Interrupted(f"{stopped}; resume it{where} with: {command}") from None


def _remove_crops(folder: Path) -> None:
    """Cached crops serve no more once the run is finished."""
    if distributed.rank() == 0:
        remove_crops(folder / FOLDER)


def _state_to_go_on_from(
    resume: Path | None, folder: Path, about: dict[str, object], say: Say
) -> TrainingState | None:
    """The saved state, found to fit this run; None where it starts. Work of another run is refused."""
    find = find_checkpoint if resume == folder else named_checkpoint
    path = None if resume is None else find(resume)
    if path is None or path.parent.resolve() != (folder / "checkpoints").resolve():
        refuse_work(folder)
    if path is None:
        if resume is not None:
            say(f"{resume}: nothing was saved here yet; the run starts from the beginning")
        return None
    state = load_checkpoint(path)
    check_resumable(path, state.get("about"), about, say)
    return state


def _restore(trainer: Trainer, state: TrainingState | None, say: Say) -> None:
    """Give the trainer the saved state, if there is one, and set checkpoints aside that it does not reach."""
    if state is None:
        return
    try:
        trainer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint of step {state['step']} does not fit these settings ({str(error)[:200]}); "
            "resume with those it was started with"
        ) from error
    if trainer.best > float("-inf") and not (trainer.folder / "best" / WEIGHTS_FILE).is_file():
        trainer.best = float("-inf")  # a score to beat without its weights would leave none in the end
        say(f"{trainer.folder} has no best/: the best weights are chosen from this step on")
    if trainer.accelerator.is_main_process:
        for path in set_newer_aside(trainer.folder / "checkpoints", trainer.step):
            say(f"a later checkpoint is set aside as {path}")


def _is_finished(folder: Path, state: TrainingState, config: Config) -> bool:
    """Whether the run has exported the weights of its last step, and this is it."""
    try:
        exported = json.loads((folder / FINISHED_FILE).read_text())
    except (OSError, ValueError):
        return False
    return state["step"] >= config.train.steps and exported == {"step": state["step"]}


def _export(
    trained: Segmenter, folder: Path, dataset: FingerprintedDataset, settings: TrainSettings, say: Say
) -> None:
    """Write final/, and what ``settings`` want beside it and best/, made of the training images ``dataset``.

    All processes take part.
    """
    if distributed.rank() == 0:
        trained.save_pretrained(folder / "final")
    distributed.wait_for_all()
    if settings.density:
        parts = [folder / part for part in RUN_PARTS if (folder / part / CONFIG_FILE).is_file()]
        reason = add_densities(parts, dataset, trained.mean.device)
        if reason is not None:
            say(f"no density beside the head, the likelihood is the anomaly score: {reason}")
    if settings.exemplars:
        _index(folder, dataset, trained.mean.device, say)


def _index(folder: Path, dataset: FingerprintedDataset, device: torch.device, say: Say) -> None:
    """Write the index of training pixels beside the better weights."""
    try:
        build_exemplars(folder, open_model(folder, calibrated=False).to(device), dataset)
    except ValueError as reason:  # a head without components: the training is none the worse for it
        say(f"no index of training pixels: {reason}")


def _finish(
    step: int, folder: Path, validation: SegmentationDataset | None, device: torch.device
) -> dict[Path, Calibration]:
    """Calibrate final/ and best/ (all processes take part), note that the run is finished, and tidy up.

    Returns what was found for each folder of weights, best/ first.
    """
    found = {}
    if validation is not None:
        found = calibrate_folders([folder / part for part in RUN_PARTS], validation, device=device)
    if distributed.rank() == 0:
        write_bytes(folder / FINISHED_FILE, json.dumps({"step": step}).encode())
    _remove_crops(folder)
    distributed.wait_for_all()
    return found
