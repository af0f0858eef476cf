"""The composition root: configuration in, objects built, work done. Read this to learn the workflow."""

import filecmp
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from gmmseg.atomic import write_bytes
from gmmseg.config import Config, DataSettings, InferenceSettings, dump_config, load_config
from gmmseg.data import SegmentationData, open_dataset
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.data.kept import Kept
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.paired import NOTHING_LABELLED
from gmmseg.data.sampling import ClassBalancedSampler, class_counts
from gmmseg.data.transforms import training_transform
from gmmseg.evaluation import build_results, scores
from gmmseg.evaluation.evaluator import (
    check_classes,
    evaluate_anomaly,
    evaluate_closed_set,
    fit_scores,
    resized,
)
from gmmseg.inference import Choices, Predictor, choose
from gmmseg.inference.windows import forward
from gmmseg.labels import IGNORE
from gmmseg.mixture import DiscriminativeMixture, OnlineEM
from gmmseg.models import Segmenter, build, from_pretrained
from gmmseg.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE
from gmmseg.models.heads import HeadSettings
from gmmseg.models.masks import MaskSegmenter
from gmmseg.models.segmenter import replace_head
from gmmseg.training.checkpoint import find_checkpoint
from gmmseg.training.optim import freeze_backbone, make_optimizer, make_schedule, make_warm_classifier
from gmmseg.training.trainer import Trainer

Progress = Callable[[int, int, str], None]

WHOLE_IMAGE = InferenceSettings()
SOFTMAX_SCORES = ("msp", "entropy", "max_logit", "energy")
GMM_SCORES = ("nll", "msp", "entropy")


# Training ---------------------------------------------------------------------------------------------


def train(config: Config, folder: Path, *, resume: Path | None = None, cpu: bool = False) -> Path:
    """Train what ``config`` says in the run folder ``folder``; returns the folder of the exported weights.

    The folder then holds config.yaml, log.jsonl, checkpoints/, best/ (weights of the best validation) and
    final/ (weights of the last step), both with what `settle` finds.
    """
    accelerator = Accelerator(mixed_precision=config.train.precision, cpu=cpu)
    set_seed(config.train.seed)
    dataset = training_data(config.data)
    refuse_unlabelled(dataset)
    segmenter = make_segmenter(config, dataset).to(accelerator.device)
    loader = make_loader(config, dataset, folder, accelerator)
    if config.train.backbone_multiplier == 0:
        freeze_backbone(segmenter)
    warm_classifier = make_warm_classifier(segmenter, config.train)
    optimizer = make_optimizer(segmenter, config.train, warm_classifier)
    validation = validation_data(config.data)
    trainer = Trainer(
        segmenter,
        loader,
        optimizer,
        make_schedule(optimizer, config.train),
        make_em(segmenter, config),
        accelerator,
        config.train,
        folder,
        (lambda model: validate(model, validation, config.inference)) if validation is not None else None,
        warm_classifier,
    )
    if accelerator.is_main_process:
        write_bytes(folder / "config.yaml", dump_config(config).encode())
    if resume is not None:
        trainer.resume(find_checkpoint(resume))
    trained = trainer.run()
    if accelerator.is_main_process:
        trained.save_pretrained(folder / "final")
        if validation is not None:
            settle([folder / "best", folder / "final"], validation, device=accelerator.device)
    accelerator.wait_for_everyone()
    return folder / "final"


def settle(
    folders: Sequence[Path],
    dataset: Any,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[Path, Choices]:
    """Find threshold, temperature and typical evidence of saved weights on a labelled set; saved with them.

    Images are seen as `gmmseg predict` sees them. Folders that are not there are passed over, and folders
    with the same weights share their choices. Returns what was chosen for each.
    """
    chosen: dict[Path, Choices] = {}
    for folder in (each for each in folders if each.is_dir()):
        model = from_pretrained(folder)
        check_classes(dataset, model.num_classes)
        model.temperature = 1.0
        same = [
            choices
            for known, choices in chosen.items()
            if filecmp.cmp(known / WEIGHTS_FILE, folder / WEIGHTS_FILE, shallow=False)
        ]
        chosen[folder] = (
            same[0] if same else choose(Predictor(model, device=device), samples(dataset, progress))
        )
        chosen[folder].give_to(model)
        model.save_pretrained(folder)
    return chosen


def calibrate(
    folder: Path, dataset: Any, *, device: torch.device | str | None = None, progress: Progress | None = None
) -> dict[Path, Choices]:
    """`settle` for the weights of a run folder, without the classes it held out, or for a folder of them."""
    config = run_config(folder)
    if config is not None and dataset.label_space is not None:
        dataset = _without(dataset, config.data)
    return settle(_weights_of(folder) or [folder], dataset, device=device, progress=progress)


def make_segmenter(config: Config, dataset: SegmentationData) -> Segmenter:
    """The network of ``config`` for the classes of ``dataset``."""
    space = dataset.label_space
    assert space is not None
    model = config.model
    segmenter = build(model.name, num_classes=len(space), head=model.head, weights=model.weights)
    segmenter.label_names, segmenter.colours = space.names, space.colours
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
    return Kept(dataset) if settings.keep else dataset


def refuse_unlabelled(dataset: Any) -> None:
    """Refuse a set without one labelled pixel; its label maps are read up to the first that has some."""
    if dataset.label_space is None:
        raise ValueError(f"{dataset.name} marks what is unknown, not classes: train on labelled images")
    if not any(bool((dataset.labels(index) != IGNORE).any()) for index in range(len(dataset))):
        raise ValueError(f"{dataset.name}, split {dataset.split}: {NOTHING_LABELLED}")


def validation_data(settings: DataSettings) -> Any:
    """The labelled validation set, without the classes held out; None where the settings name no split."""
    if settings.validation_split is None:
        return None
    dataset = _without(open_dataset(settings.name, settings.root, settings.validation_split), settings)
    return Kept(dataset) if settings.keep else dataset


def hidden_data(settings: DataSettings, split: str) -> Any:
    """The held-out classes of a split as an anomaly set."""
    return HiddenClasses(open_dataset(settings.name, settings.root, split), settings.held_out)


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


def validate(segmenter: Segmenter, dataset: Any, settings: InferenceSettings) -> dict[str, float]:
    """Closed-set numbers for the log; ``score`` (the mIoU) chooses the best weights."""
    predictor = Predictor(segmenter, window=settings.window, stride=settings.stride)
    entry = evaluate_closed_set(predictor, dataset, short_side=settings.short_side, classwise=False)
    metrics = entry["metrics"]
    return {"score": metrics["miou"], **{name: metrics[name] for name in ("miou", "pixel_accuracy", "ece")}}


# Post-hoc mixtures ------------------------------------------------------------------------------------


def fit(
    model: Segmenter, dataset: Any, components: int, *, passes: int = 20, progress: Progress | None = None
) -> tuple[Segmenter, list[float]]:
    """A generative segmenter on the frozen features of a trained softmax one, its mixtures fitted by EM.

    Nothing is trained by gradient: the features are the points. Also returns the mean log-likelihood at
    each pass over ``dataset``.
    """
    channels = model.features.out_channels
    assert isinstance(channels, int)
    settings = HeadSettings(components=components, dim=channels, projection="none", link="bayes")
    fitted = replace_head(model, settings)
    assert fitted.mixture is not None
    history = fitted.mixture.fit(_PointStream(fitted, dataset, progress), passes=passes)
    return fitted, history


class _PointStream:
    """Points and labels of every image of a data set, computed anew in each pass: nothing is kept."""

    def __init__(self, segmenter: Segmenter, dataset: Any, progress: Progress | None) -> None:
        self.segmenter, self.dataset, self.progress = segmenter, dataset, progress

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for sample in samples(self.dataset, self.progress):
            output = forward(self.segmenter, resized(sample.image.float()[None] / 255, None))
            points, labels, _ = self.segmenter.em_points(output, sample.labels[None].long())
            yield points.clone(), labels


# Evaluation -------------------------------------------------------------------------------------------


def evaluate(
    model: Segmenter,
    name: str,
    sets: Sequence[Any],
    *,
    score_names: Sequence[str] = (),
    training_set: Any = None,
    steps: Sequence[Any] = (),
    components: str | None = None,
    inference: InferenceSettings = WHOLE_IMAGE,
    seeds: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The results of a model on labelled and anomaly sets, one pass each; for `write_results`."""
    predictor = Predictor(model, window=inference.window, stride=inference.stride)
    chosen = make_scores(model, score_names)
    entries = {}
    if any(hasattr(score, "fit") for score in chosen):
        if training_set is None:
            needing = ", ".join(score.name for score in chosen if hasattr(score, "fit"))
            raise ValueError(
                f"{needing}: these scores need statistics of the training set; name it with --train-data"
            )
        fit_scores(chosen, predictor, training_set, short_side=inference.short_side, progress=progress)
    for dataset in sets:
        if dataset.label_space is not None:
            entry = evaluate_closed_set(
                predictor, dataset, short_side=inference.short_side, progress=progress
            )
        else:
            entry = evaluate_anomaly(
                predictor,
                dataset,
                chosen,
                steps=steps,
                components=components,
                short_side=inference.short_side,
                progress=progress,
            )
        entries[f"{dataset.name}/{dataset.split}"] = entry
    settings = {"inference": inference.__dict__, "score_names": [score.name for score in chosen]}
    return build_results(name, entries, seeds=seeds, settings=settings)


def make_scores(model: Segmenter, names: Sequence[str] = ()) -> list[Any]:
    """Score objects by name; without names, those that suit the model's head."""
    names = names or _suitable_scores(model)
    known: dict[str, Callable[[], Any]] = {kind.name: kind for kind in scores.ALL}
    known[scores.Typicality.name] = lambda: scores.Typicality(model.typical)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown scores {', '.join(unknown)}: choose among {', '.join(known)}")
    return [known[name]() for name in names]


def _suitable_scores(model: Segmenter) -> tuple[str, ...]:
    if model.mixture is None:
        return SOFTMAX_SCORES
    typical = () if model.typical is None else ("typicality",)
    if isinstance(model, MaskSegmenter):
        return (*GMM_SCORES, *typical)  # components are of queries there, and no map of pixels
    # The evidence as the model defines it, and the other way to sum up the components.
    other = "nll_logsumexp" if model.mixture.winner else "nll_winner"
    return (GMM_SCORES[0], other, *typical, *GMM_SCORES[1:])


def open_model(source: str | Path) -> Segmenter:
    """A segmenter from a run folder (its best weights), a folder of weights, or a name on the hub."""
    return from_pretrained(next(iter(_weights_of(Path(source))), source))


def _weights_of(run_folder: Path) -> list[Path]:
    """The folders of weights a run has left, the best first."""
    parts = (run_folder / part for part in ("best", "final"))
    return [part for part in parts if (part / CONFIG_FILE).is_file()]


def run_config(folder: Path) -> Config | None:
    """The configuration a run folder was trained with, if it is one."""
    path = Path(folder) / "config.yaml"
    return load_config(path) if path.is_file() else None


def _without(dataset: Any, settings: DataSettings) -> Any:
    return WithoutClasses(dataset, settings.held_out) if settings.held_out else dataset


def samples(dataset: Any, progress: Progress | None = None) -> Iterator[Any]:
    """The samples of a data set one after the other."""
    for index in range(len(dataset)):
        sample = dataset[index]
        yield sample
        if progress:
            progress(index + 1, len(dataset), sample.name)
