"""The parts of a run, built from its configuration: data, network, EM, loader, trainer."""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState

from gmmseg.config import Config, DataSettings
from gmmseg.data import SegmentationData, open_dataset
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.cached import CachedDataset
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.paired import NOTHING_LABELLED
from gmmseg.data.samplers import ClassBalancedSampler, class_counts
from gmmseg.data.transforms import training_transform
from gmmseg.evaluation.evaluator import (
    evaluate_closed_set,
)
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.mixture import DiscriminativeMixture, OnlineEM
from gmmseg.models import Segmenter, build
from gmmseg.training.optim import freeze_backbone, make_optimizer, make_schedule, make_warm_classifier
from gmmseg.training.trainer import Trainer


def must_use_cpu() -> bool:
    """Whether torchrun has started several processes on a CPU: unless told so, accelerate sees one."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.accelerator.is_available()


def join_processes() -> PartialState:
    """This process among those that torchrun started, or the only one: its device, and if it is the main."""
    return PartialState(cpu=must_use_cpu())


def make_trainer(
    config: Config,
    folder: Path,
    dataset: Any,
    validation: Any,
    accelerator: Accelerator,
    about: dict[str, Any] | None = None,
) -> Trainer:
    """The loop and all its parts for ``config``, at step 0."""
    segmenter = make_segmenter(config, dataset).to(accelerator.device)
    loader = make_loader(config, dataset, folder, accelerator)
    if config.train.backbone_multiplier == 0:
        freeze_backbone(segmenter)
    warm_classifier = make_warm_classifier(segmenter, config.train)
    optimizer = make_optimizer(segmenter, config.train, warm_classifier)
    return Trainer(
        segmenter,
        loader,
        optimizer,
        make_schedule(optimizer, config.train),
        make_em(segmenter, config),
        accelerator,
        config.train,
        folder,
        (lambda model: validate(model, validation)) if validation is not None else None,
        warm_classifier,
        about,
    )


def make_segmenter(config: Config, dataset: SegmentationData) -> Segmenter:
    """The network of ``config`` for the classes of ``dataset``."""
    space = dataset.label_space
    assert space is not None
    model = config.model
    segmenter = build(model.name, head=model.head, weights=model.weights, class_names=space.names)
    segmenter.label_names, segmenter.colours = space.names, space.colours
    segmenter.inference = config.inference.override()  # refuses a stride that fits no window
    return segmenter


def make_em(segmenter: Segmenter, config: Config) -> OnlineEM | None:
    """EM for a generative head; a softmax head or a discriminative mixture needs none."""
    mixture = segmenter.mixture
    if mixture is None or isinstance(mixture, DiscriminativeMixture):
        return None
    return OnlineEM(mixture, config.em, seed=config.train.seed)


def training_data(settings: DataSettings) -> Any:
    """The labelled training set, without the classes held out."""
    dataset = _without(open_dataset(settings.name, settings.root, settings.train_split), settings)
    return CachedDataset(dataset) if settings.keep else dataset


def validation_data(settings: DataSettings) -> Any:
    """The labelled validation set, without the classes held out; None where the settings name no split."""
    if settings.validation_split is None:
        return None
    dataset = _without(open_dataset(settings.name, settings.root, settings.validation_split), settings)
    return CachedDataset(dataset) if settings.keep else dataset


def hidden_data(settings: DataSettings, split: str) -> Any:
    """The held-out classes of a split as an anomaly set."""
    return HiddenClasses(open_dataset(settings.name, settings.root, split), settings.held_out)


def _without(dataset: Any, settings: DataSettings) -> Any:
    return WithoutClasses(dataset, settings.held_out) if settings.held_out else dataset


def refuse_unlabelled(dataset: Any) -> None:
    """Refuse a set without one labelled pixel; its label maps are read up to the first that has some."""
    if dataset.label_space is None:
        raise ValueError(f"{dataset.name} marks what is unknown, not classes: train on labelled images")
    if not any(bool((dataset.labels(index) != IGNORE).any()) for index in range(len(dataset))):
        raise ValueError(f"{dataset.name}, split {dataset.split}: {NOTHING_LABELLED}")


def make_loader(config: Config, dataset: Any, folder: Path, accelerator: Accelerator) -> EpochLoader:
    """Augmented batches in an order that depends on the seed alone, shared out over processes."""
    settings, seed = config.data, config.train.seed
    transform = training_transform(settings.crop, scale=settings.scale, short_side=settings.short_side)
    global_batch = config.train.batch_size * accelerator.num_processes
    if settings.balanced:
        counts = class_counts(dataset, cache=folder / "class_counts.json")
        sampler: Any = ClassBalancedSampler(counts, length=max(len(dataset), global_batch), seed=seed)
    else:
        sampler = ShuffledSampler(len(dataset), least=global_batch, seed=seed)
    return EpochLoader(
        AugmentedDataset(dataset, transform, seed),
        sampler,
        config.train.batch_size,
        workers=settings.workers,
        prepare=accelerator.prepare_data_loader,
    )


def validate(segmenter: Segmenter, dataset: Any) -> dict[str, float]:
    """Closed-set numbers for the log; ``score`` (the mIoU) chooses the best weights."""
    entry = evaluate_closed_set(Predictor(segmenter), dataset, classwise=False)
    metrics = entry["metrics"]
    return {"score": metrics["miou"], **{name: metrics[name] for name in ("miou", "pixel_accuracy", "ece")}}
