"""The parts of a run, built from its configuration: data, network, EM, loader, trainer."""

import copy
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from torch import nn

from gmmseg.config import Config, DataSettings
from gmmseg.data import open_dataset
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.cached import CachedDataset
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.paired import NOTHING_LABELLED
from gmmseg.data.samplers import ClassBalancedSampler, class_counts, fingerprint
from gmmseg.data.transforms import training_transform
from gmmseg.evaluation.evaluator import evaluate_closed_set
from gmmseg.inference import Predictor
from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture, OnlineEM
from gmmseg.mixture.changing import as_one_group_
from gmmseg.models import Segmenter, build
from gmmseg.models.companion import Companion, companion_of
from gmmseg.models.features import SplitFeatures, begin_anew_
from gmmseg.models.heads import make_head
from gmmseg.samples import FingerprintedDataset, SegmentationDataset
from gmmseg.training.cached_crops import FOLDER, CachedCrops, OnCachedMaps, collate_crops, splittable
from gmmseg.training.optim import freeze_backbone, make_optimization
from gmmseg.training.teaching import Taught
from gmmseg.training.trainer import Loader, Trainer

_SEEDS_APART = 1_000_003
CLASS_IOU = "iou/"
"""How the names of the classes' own numbers begin in a validation."""


def must_use_cpu() -> bool:
    """Whether torchrun has started several processes on a CPU: unless told so, accelerate sees one."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.accelerator.is_available()


def join_processes() -> PartialState:
    """This process among those that torchrun started, or the only one: its device, and if it is the main."""
    return PartialState(cpu=must_use_cpu())


def device_named(name: str) -> torch.device:
    """The device of this name; ValueError with those there are for one that cannot be used here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise ValueError(f"--device {name}: not on this machine; there is {', '.join(there)}") from error
    return device


def make_trainer(
    config: Config,
    segmenter: Segmenter,
    loader: Loader,
    accelerator: Accelerator,
    folder: Path,
    validation: SegmentationDataset | None = None,
    about: dict[str, object] | None = None,
    crops: CachedCrops | None = None,
    teacher: Segmenter | None = None,
) -> Trainer:
    """The loop that trains ``segmenter`` on the batches of ``loader`` as ``config`` says, at step 0.

    ``crops``, as `make_crops` gives them, are what ``loader`` hands out in the place of images. Their file is
    written when the backbone has its weights (`CachedCrops.make`), before the first step. ``teacher``: a
    trained network with the same backbone, and the same classes, that it learns to agree with.
    """
    if config.train.backbone_multiplier == 0:
        freeze_backbone(segmenter)
    if crops is not None:
        splittable(segmenter)  # refuses one whose backbone is trained, or has no maps of its own
    em, *others = _make_ems(segmenter, config)
    network: nn.Module = segmenter if crops is None else OnCachedMaps(segmenter, crops)
    if teacher is not None:
        teacher = copy.deepcopy(teacher)  # which is frozen: the one given stays as it is
        network = Taught(network, teacher if crops is None else OnCachedMaps(teacher, crops))
    return Trainer(
        segmenter,
        loader,
        make_optimization(
            segmenter, config.train, em, accelerator.prepare, network, others, apart=crops is not None
        ),
        accelerator,
        config.train,
        folder,
        (lambda model: validate(model, validation)) if validation is not None else None,
        about,
    )


def make_segmenter(config: Config, dataset: SegmentationDataset) -> Segmenter:
    """The network of ``config`` for the classes of ``dataset``."""
    space = dataset.label_space
    assert space is not None
    model = config.model
    make = partial(build, model.name, head=model.head, weights=model.weights, class_names=space.names)
    segmenter = make()
    segmenter.density, segmenter.companions = None, nn.ModuleList()  # of a backbone that is about to change
    segmenter.label_names, segmenter.colours = space.names, space.colours
    segmenter.inference = config.inference.override()  # refuses a stride that fits no window
    segmenter.companions.extend(_more_decoders(config, segmenter, make))
    return segmenter


def _more_decoders(
    config: Config, segmenter: Segmenter, make: Callable[[], Segmenter]
) -> Iterator[Companion]:
    """Those that `train.decoders` asks for beside the network's own, each with random weights of its own.

    None where the backbone is trained, or cannot be told from the decoder, where a part of the decoder is
    taught by auxiliary heads, which companions have not, and with a softmax warm-up.
    """
    frozen = config.train.backbone_multiplier == 0 or not any(
        parameter.requires_grad for parameter in segmenter.backbone.parameters()
    )
    apart = frozen and isinstance(segmenter.features, SplitFeatures)
    if not apart or len(segmenter.auxiliary_heads) or config.train.softmax_steps:
        return
    for _ in range(config.train.decoders - 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to say of the weights has been said
            other = make()
        if _start_alike(segmenter, other):  # from weights that brought a trained decoder
            begin_anew_(other.features)
            channels = other.features.out_channels
            assert isinstance(channels, int)
            other.head = make_head(config.model.head, channels, other.num_classes)
        yield companion_of(other.features, other.head, "decoder", config.model.head, learns=True)


def _start_alike(one: Segmenter, other: Segmenter) -> bool:
    """Whether the weights between backbone and head are the same; vectors and scalars do not tell."""
    backbone = {id(each) for network in (one, other) for each in network.backbone.parameters()}
    pairs = zip(one.features.parameters(), other.features.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs if id(pair[0]) not in backbone and pair[0].ndim > 1)


def _make_ems(segmenter: Segmenter, config: Config) -> list[OnlineEM | None]:
    """EM for the segmenter's own head and for each that learns beside it; each draws samples of its own."""
    heads = [segmenter.head, *(each.head for each in segmenter.learning)]
    return [
        make_em(getattr(head, "mixture", None), config, config.train.seed + _SEEDS_APART * number)
        for number, head in enumerate(heads)
    ]


def make_em(mixture: ClassMixture | None, config: Config, seed: int) -> OnlineEM | None:
    """EM for a generative head; a softmax head or a discriminative mixture needs none."""
    if mixture is None or not mixture.moved_by_em:
        return None
    as_one_group_(mixture)
    return OnlineEM(mixture, config.em, seed=seed)


def training_data(settings: DataSettings) -> FingerprintedDataset:
    """The labelled training set, without the classes held out."""
    dataset = _without(open_dataset(settings.name, settings.root, settings.train_split), settings)
    return CachedDataset(dataset) if settings.keep else dataset


def validation_data(settings: DataSettings) -> FingerprintedDataset | None:
    """The labelled validation set, without the classes held out; None where the settings name no split."""
    if settings.validation_split is None:
        return None
    dataset = _without(open_dataset(settings.name, settings.root, settings.validation_split), settings)
    return CachedDataset(dataset) if settings.keep else dataset


def hidden_data(settings: DataSettings, split: str) -> FingerprintedDataset:
    """The held-out classes of a split as an anomaly set."""
    return HiddenClasses(open_dataset(settings.name, settings.root, split), settings.held_out)


def _without(dataset: FingerprintedDataset, settings: DataSettings) -> FingerprintedDataset:
    return WithoutClasses(dataset, settings.held_out) if settings.held_out else dataset


def refuse_unlabelled(dataset: SegmentationDataset) -> None:
    """Refuse a set without one labelled pixel; its label maps are read up to the first that has some."""
    if dataset.label_space is None:
        raise ValueError(f"{dataset.name} marks what is unknown, not classes: train on labelled images")
    if not any(bool((dataset.labels(index) != IGNORE).any()) for index in range(len(dataset))):
        raise ValueError(f"{dataset.name}, split {dataset.split}: {NOTHING_LABELLED}")


def augmented(config: Config, dataset: FingerprintedDataset) -> AugmentedDataset:
    """The crops that training sees, epoch by epoch."""
    settings = config.data
    transform = training_transform(settings.crop, scale=settings.scale, short_side=settings.short_side)
    return AugmentedDataset(dataset, transform, config.train.seed)


def make_crops(config: Config, folder: Path, dataset: FingerprintedDataset) -> CachedCrops | None:
    """Where the crops of `augmented` are kept below ``folder``; None without ``train.cached_crops``.

    Nothing is written yet.
    """
    settings, count = config.data, config.train.cached_crops
    if not count:
        return None
    made_with = {
        **{name: getattr(settings, name) for name in ("crop", "scale", "short_side", "held_out")},
        "seed": config.train.seed,
        "precision": config.train.precision,
        "data": fingerprint(dataset),
    }
    return CachedCrops(
        folder / FOLDER, augmented(config, dataset), count, made_with, workers=settings.workers
    )


def make_loader(
    config: Config,
    dataset: FingerprintedDataset,
    folder: Path,
    accelerator: Accelerator,
    crops: CachedCrops | None = None,
    heads: int = 1,
) -> EpochLoader:
    """Augmented batches, or those of cached ``crops``, in an order that depends on the seed alone.

    They are shared out over processes. Batches of cached crops are for ``heads``, each with a part of its
    own.
    """
    settings, seed = config.data, config.train.seed
    size = config.train.batch_size * (1 if crops is None else heads)
    global_batch = size * accelerator.num_processes
    if settings.balanced:
        counts = class_counts(dataset, cache=folder / "class_counts.json")
        sampler: ClassBalancedSampler | ShuffledSampler = ClassBalancedSampler(
            counts, length=max(len(dataset), global_batch), seed=seed
        )
    else:
        sampler = ShuffledSampler(len(dataset), least=global_batch, seed=seed)
    workers, prepare = settings.workers, accelerator.prepare_data_loader
    if crops is None:
        return EpochLoader(augmented(config, dataset), sampler, size, workers=workers, prepare=prepare)
    return EpochLoader(crops, sampler, size, workers=workers, prepare=prepare, collate=collate_crops)


def validate(segmenter: Segmenter, dataset: SegmentationDataset) -> dict[str, float]:
    """Closed-set numbers for the log; ``score`` (the mIoU) chooses the best weights.

    The IoU of a class is under CLASS_IOU and its name; a class that no pixel is of, or taken for, has none.
    """
    entry = evaluate_closed_set(Predictor(segmenter), dataset, classwise=False, per_image=False)
    metrics = entry["metrics"]
    return {
        "score": metrics["miou"],
        **{name: metrics[name] for name in ("miou", "pixel_accuracy", "ece")},
        **{
            f"{CLASS_IOU}{name}": each["iou"]
            for name, each in entry["classes"].items()
            if each["iou"] is not None
        },
    }
