"""What a training run tells its user: what is about to be trained, and at the end what came of it."""

import shlex
from pathlib import Path

from gmmseg.config import Config, DataSettings
from gmmseg.data.paired import PairedFiles
from gmmseg.data.wrapped import WrappedDataset
from gmmseg.json_tree import JSON
from gmmseg.models import Calibration, Segmenter
from gmmseg.models.packaged import PACKAGED_WORD
from gmmseg.report.stored import read_log
from gmmseg.run.building import CLASS_IOU
from gmmseg.samples import SegmentationDataset
from gmmseg.training.trainer import Trainer

SHOWN_NAMES = 60
"""Characters of class names in the header."""


def header(
    config: Config, dataset: SegmentationDataset, validation: SegmentationDataset | None, trainer: Trainer
) -> str:
    """Data, classes, network and steps of a run that is about to begin or to go on, one a line."""
    processes = trainer.accelerator.num_processes
    images = config.train.batch_size * config.train.accumulate * processes
    where = trainer.accelerator.device
    apart = f" for each of {len(trainer.learners)} decoders" if trainer.apart and trainer.learners[1:] else ""
    shared = f", shared by {processes} processes" if processes > 1 else ""
    begun = f", going on from step {trainer.step}" if trainer.step else ""
    lines = {
        "data": _data(dataset, validation),
        "classes": _classes(dataset),
        "network": _network(config, trainer.segmenter),
        "steps": f"{config.train.steps} of {images} images{apart} on {where}{shared}{begun}",
        "run folder": str(trainer.folder),
    }
    if config.machine == "cpu":
        lines["settings"] = (
            "those for a machine without a GPU (on_cpu in the configuration); machine=gpu takes the others"
        )
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items())


def _data(dataset: SegmentationDataset, validation: SegmentationDataset | None) -> str:
    place = f" in {dataset.root}" if dataset.root is not None else ""
    judged = "no validation" if validation is None else f"{len(validation)} to validate with"
    return f"{dataset.name}{place}: {len(dataset)} images to train on, {judged}"


def _classes(dataset: SegmentationDataset) -> str:
    assert dataset.label_space is not None
    names = ", ".join(dataset.label_space.names)
    short = names if len(names) <= SHOWN_NAMES else f"{names[:SHOWN_NAMES].rpartition(',')[0]}, ..."
    return f"{len(dataset.label_space)}: {short}"


def _network(config: Config, segmenter: Segmenter) -> str:
    parameters = list(segmenter.parameters())
    every = sum(each.numel() for each in parameters)
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    weights = {
        None: "random weights",
        "pretrained": "pretrained backbone",
        PACKAGED_WORD: "pretrained backbone",
    }.get(config.model.weights, f"weights of {config.model.weights}")
    head = "softmax head" if config.model.head.kind == "softmax" else f"mixtures ({config.preset})"
    if len(segmenter.companions):
        head += f", {1 + len(segmenter.companions)} decoders side by side"
    return (
        f"{config.model.name}, {weights}, {head}: {_millions(trained)} of {_millions(every)} million "
        "parameters are trained"
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f}"


def closing(
    config: Config, folder: Path, validation: SegmentationDataset | None, found: dict[Path, Calibration]
) -> str:
    """The IoU of each class with the best weights, what was calibrated, and what to type next."""
    lines = [*_class_table(folder), *(_calibrated(folder, *each) for each in list(found.items())[:1])]
    lines += ["next:", *(f"  {command}" for command in _next_commands(config.data, folder, validation))]
    return "\n".join(lines)


def _class_table(folder: Path) -> list[str]:
    """A line per class, from the best validation in the log; none where the log has no validation."""
    entry = _best_validation(folder / "log.jsonl")
    if entry is None:
        return []
    ious = {key.removeprefix(CLASS_IOU): iou for key, iou in entry.items() if key.startswith(CLASS_IOU)}
    wide = max([len("mean of the classes"), *map(len, ious)])
    lines = [f"IoU of each class on the validation images (best/, of step {entry['step']}):"]
    lines += [f"{name:<{wide}}  {100 * iou:5.1f} %" for name, iou in ious.items()]
    return [*lines, f"{'mean of the classes':<{wide}}  {100 * entry['miou']:5.1f} %"]


def _best_validation(log: Path) -> JSON | None:
    """The entry of the log that the weights in best/ were saved at: the first with the highest mIoU."""
    entries = read_log(log) if log.is_file() else []
    judged = [
        entry for entry in entries if entry.get("kind") == "validation" and entry.get("miou") is not None
    ]
    return max(judged, key=lambda entry: entry["miou"], default=None)


def _calibrated(run_folder: Path, folder: Path, found: Calibration) -> str:
    said = f"temperature of the posterior {found.temperature:.3f}"
    if found.threshold is not None:
        said = f"unknown is a score above {found.threshold:.4g}; the threshold {found.promise_text()}; {said}"
    return f"{folder.relative_to(run_folder)}/calibration.json: {said}"


def _next_commands(
    data: DataSettings, folder: Path, validation: SegmentationDataset | None
) -> tuple[str, str]:
    """How to evaluate and to use the model, with the paths of this run where they are known."""
    split = data.validation_split or "SPLIT"
    spec = f"{data.name}:{data.root or ''}:{split}"
    image = None if validation is None else _first_image(validation)
    return (
        shlex.join(["gmmseg", "evaluate", str(folder), "--data", spec]),
        shlex.join(
            [
                "gmmseg",
                "predict",
                str(image or "PHOTOS"),
                "-m",
                str(folder),
                "--out",
                str(folder / "pictures"),
            ]
        ),
    )


def _first_image(dataset: SegmentationDataset) -> Path | None:
    """The file of the first image; None where images are not files."""
    while isinstance(dataset, WrappedDataset):
        dataset = dataset.dataset
    return dataset.pairs[0].image if isinstance(dataset, PairedFiles) else None
