"""The composition root: configuration in, objects built, work done. Read this to learn the workflow."""

import filecmp
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed

from gmmseg import distributed
from gmmseg.atomic import write_bytes
from gmmseg.config import Config, DataSettings, dump_config, load_config
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
    shard,
)
from gmmseg.inference import Choices, Predictor, choose
from gmmseg.inference.predictor import UNFITTED
from gmmseg.labels import IGNORE
from gmmseg.mixture import DiscriminativeMixture, OnlineEM
from gmmseg.models import Segmenter, build, from_pretrained
from gmmseg.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, digest, read_config
from gmmseg.models.heads import HeadSettings
from gmmseg.models.masks import MaskSegmenter
from gmmseg.models.segmenter import replace_head
from gmmseg.models.settings import InferenceSettings
from gmmseg.resuming import check_resumable, describe_run
from gmmseg.training.checkpoint import (
    CheckpointError,
    find_checkpoint,
    load_checkpoint,
    named_checkpoint,
    resume_command,
    set_newer_aside,
)
from gmmseg.training.optim import freeze_backbone, make_optimizer, make_schedule, make_warm_classifier
from gmmseg.training.run_folder import locked, refuse_work
from gmmseg.training.trainer import Interrupted, Trainer

Progress = Callable[[int, int, str], None]
Say = Callable[[str], object]
FINISHED_FILE = "finished.json"

_PARTS = ("best", "final")  # folders of weights in a run folder
AS_VALIDATED = InferenceSettings()
"""Nothing is overridden: the model looks at images as it did in its validation."""
SOFTMAX_SCORES = ("msp", "entropy", "max_logit", "energy")
GMM_SCORES = ("nll", "msp", "entropy")


def must_use_cpu() -> bool:
    """Whether torchrun has started several processes on a CPU: unless told so, accelerate sees one."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.accelerator.is_available()


def join_processes() -> PartialState:
    """This process among those that torchrun started, or the only one: its device, and if it is the main."""
    return PartialState(cpu=must_use_cpu())


# Training ---------------------------------------------------------------------------------------------


def train(
    config: Config, folder: Path, *, resume: Path | None = None, cpu: bool = False, say: Say | None = None
) -> Path:
    """Train what ``config`` says in the run folder ``folder``; returns the folder of the exported weights.

    The folder then holds config.yaml, log.jsonl, checkpoints/, best/ (weights of the best validation) and
    final/ (weights of the last step), both with what `settle` finds. ``resume`` is a run folder, whose newest
    checkpoint is taken, or a checkpoint file; only ``folder`` itself may hold none yet. ``say`` is told what
    a resumed run does differently.
    """
    accelerator = Accelerator(mixed_precision=config.train.precision, cpu=cpu or must_use_cpu())
    say = say if say and accelerator.is_main_process else _keep_quiet
    set_seed(config.train.seed)
    dataset, validation = training_data(config.data), validation_data(config.data)
    refuse_unlabelled(dataset)
    about = describe_run(config, dataset, accelerator.num_processes)
    with locked(folder):
        state = _state_to_go_on_from(resume, folder, about, say)
        if state is not None and _is_finished(folder, state, config):
            say(f"{folder}: this run is finished, at step {state['step']}; nothing is written")
            return folder / "final"
        trainer = make_trainer(config, folder, dataset, validation, accelerator, about)
        if state is not None:
            _restore(trainer, state, say)
        if accelerator.is_main_process:
            write_bytes(folder / "config.yaml", dump_config(config).encode())
        try:
            trained = trainer.run()
        except Interrupted as stopped:
            where = f" on {accelerator.num_processes} processes" if accelerator.num_processes > 1 else ""
            command = resume_command(folder, "--resume", *(["--cpu"] if cpu else []))
            raise Interrupted(f"{stopped}; resume it{where} with: {command}") from None
        _export(trained, trainer.step, folder, validation, accelerator.device)
    return folder / "final"


def _keep_quiet(message: str) -> None:
    """What is said where nobody listens, or another process says it."""


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


def _state_to_go_on_from(
    resume: Path | None, folder: Path, about: dict[str, Any], say: Say
) -> dict[str, Any] | None:
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


def _restore(trainer: Trainer, state: dict[str, Any], say: Say) -> None:
    """Give the trainer its state, and set checkpoints aside that this run no longer leads to."""
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


def _is_finished(folder: Path, state: dict[str, Any], config: Config) -> bool:
    """Whether the run has exported the weights of its last step, and this is it."""
    try:
        exported = json.loads((folder / FINISHED_FILE).read_text())
    except (OSError, ValueError):
        return False
    return state["step"] >= config.train.steps and exported == {"step": state["step"]}


def _export(trained: Segmenter, step: int, folder: Path, validation: Any, device: torch.device) -> None:
    """Write final/, calibrate it and best/ (all processes take part), and note that the run is finished."""
    if distributed.rank() == 0:
        trained.save_pretrained(folder / "final")
    distributed.wait_for_all()
    if validation is not None:
        settle([folder / "best", folder / "final"], validation, device=device)
    if distributed.rank() == 0:
        write_bytes(folder / FINISHED_FILE, json.dumps({"step": step}).encode())
    distributed.wait_for_all()


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
    with locked(_run_folder(folder) or folder):
        return settle(_weights_of(folder) or [folder], dataset, device=device, progress=progress)


def make_segmenter(config: Config, dataset: SegmentationData) -> Segmenter:
    """The network of ``config`` for the classes of ``dataset``."""
    space = dataset.label_space
    assert space is not None
    model = config.model
    segmenter = build(model.name, num_classes=len(space), head=model.head, weights=model.weights)
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


def validate(segmenter: Segmenter, dataset: Any) -> dict[str, float]:
    """Closed-set numbers for the log; ``score`` (the mIoU) chooses the best weights."""
    entry = evaluate_closed_set(Predictor(segmenter), dataset, classwise=False)
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
    check_classes(dataset, model.num_classes)
    # A softmax head takes the features as they are, which is what the mixtures are fitted on.
    features = replace_head(model, HeadSettings(kind="softmax"))
    history = fitted.mixture.fit(_PointStream(features, dataset, progress), passes=passes)
    return fitted, history


class _PointStream:
    """Points and labels of every image of a data set, computed anew in each pass: nothing is kept."""

    def __init__(self, segmenter: Segmenter, dataset: Any, progress: Progress | None) -> None:
        self.predictor, self.dataset, self.progress = Predictor(segmenter), dataset, progress

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for sample in samples(self.dataset, self.progress):
            images, labels = sample.image.float()[None] / 255, sample.labels[None].long()
            for output, known in self.predictor.outputs(images, labels):
                points, classes, *_ = self.predictor.segmenter.em_points(output, known)
                yield points.clone(), classes


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
    inference: InferenceSettings = AS_VALIDATED,
    seeds: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The results of a model on labelled and anomaly sets, one pass each; for `write_results`.

    ``inference`` overrides how the model looks at images where it says something, as in `Predictor`.
    """
    predictor = Predictor(model, **vars(inference))
    keyed, chosen = _keyed(sets), make_scores(model, score_names)
    fitted_on = _fit_needed(chosen, predictor, training_set, progress)
    entries: dict[str, Any] = {}
    for key, dataset in keyed.items():
        if dataset.label_space is not None:
            entry = evaluate_closed_set(predictor, dataset, progress=progress)
        else:
            entry = evaluate_anomaly(
                predictor,
                dataset,
                chosen,
                steps=steps,
                components=components,
                progress=progress,
            )
            _say_how(entry, chosen, components, fitted_on)
        entries[key] = {**entry, "asked": _asked(dataset, predictor.inference)}
    settings = {
        "inference": vars(predictor.inference),
        "score_names": [score.name for score in chosen],
        "temperature": model.temperature,
    }
    return build_results(name, entries, seeds=seeds, settings=settings, weights=digest(model))


def _fit_needed(
    chosen: Sequence[Any], predictor: Predictor, training_set: Any, progress: Progress | None
) -> str | None:
    """Fit those scores that need statistics of the training set; returns the set they were fitted on."""
    needing = [score.name for score in chosen if isinstance(score, scores.FittedScore)]
    if not needing:
        return None
    if training_set is None:
        raise ValueError(
            f"{', '.join(needing)}: these scores need statistics of the training set; "
            "name it with --train-data"
        )
    fit_scores(chosen, predictor, training_set, progress=progress)
    root = getattr(training_set, "root", None)
    return f"{training_set.name}/{training_set.split}" + (f" in {Path(root).resolve()}" if root else "")


def judged_sets(source: str | Path, dataset: Any) -> list[Any]:
    """What the model of a run is judged on when it is given ``dataset``: that, as a rule.

    A labelled set that holds the classes the run held out becomes two: the known classes without the hidden
    ones, and the hidden ones as an anomaly set.
    """
    if dataset.label_space is None:
        return [dataset]
    names = dataset.label_space.names
    hidden = _held_out(Path(source), names)
    if not hidden or not set(hidden) <= set(names):
        return [dataset]
    return [WithoutClasses(dataset, hidden), HiddenClasses(dataset, hidden)]


def _held_out(source: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Which of a set's classes the model was not to see: as its run says, or, of weights that have left their
    run, those it has no name for while it has one for every class of its own in the set."""
    config = run_config(source)
    if config is not None:
        return config.data.held_out
    if not (source / CONFIG_FILE).is_file():
        return ()
    known = read_config(source).get("label_names") or ()
    return tuple(name for name in names if name not in known) if set(known) < set(names) else ()


def _keyed(sets: Sequence[Any]) -> dict[str, Any]:
    """The sets by name and split, and by their root too where that does not tell them apart."""
    keyed: dict[str, Any] = {}
    for dataset in sets:
        key = f"{dataset.name}/{dataset.split}"
        key = f"{key} (root={getattr(dataset, 'root', None)})" if key in keyed else key
        if key in keyed or any(_same_files(dataset, other) for other in keyed.values()):
            raise ValueError(f"{dataset.name}/{dataset.split}: given twice; give each set once")
        keyed[key] = dataset
    return keyed


def _same_files(one: Any, other: Any) -> bool:
    sources = [(each.name, each.split, getattr(each, "root", None)) for each in (one, other)]
    return sources[0] == sources[1]


def _say_how(
    entry: dict[str, Any], chosen: Sequence[Any], components: str | None, fitted_on: str | None
) -> None:
    """Note with each score what it was fitted on, and which preset its component figures follow."""
    fitted = {score.name for score in chosen if isinstance(score, scores.FittedScore)}
    for name, score in entry["scores"].items():
        if name.partition("+")[0] in fitted:
            score["fitted_on"] = fitted_on
        if "components" in score:
            score["components"]["preset"] = components


def _asked(dataset: Any, inference: InferenceSettings) -> dict[str, Any]:
    """What tells this judgement of a set from others: where it lies and how its images are looked at."""
    root = getattr(dataset, "root", None)
    return {"root": None if root is None else str(Path(root).resolve()), **vars(inference)}


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
    """A segmenter from a run folder (its best weights), a folder of weights, or the hub (hf:owner/name).

    One whose mixtures nobody has fitted is refused: it would show noise.
    """
    model = from_pretrained(next(iter(_weights_of(Path(source))), source))
    if not model.is_fitted:
        raise ValueError(f"{source}: {UNFITTED}")
    return model


def _weights_of(run_folder: Path) -> list[Path]:
    """The folders of weights a run has left, the best first."""
    parts = (run_folder / part for part in _PARTS)
    return [part for part in parts if (part / CONFIG_FILE).is_file()]


def run_config(folder: Path) -> Config | None:
    """The configuration a run folder, or a folder of weights in one, was trained with."""
    place = _run_folder(folder)
    return None if place is None else load_config(place / "config.yaml")


def _run_folder(folder: Path) -> Path | None:
    """The run folder that ``folder`` is, or that it is a folder of weights in."""
    places = (folder, folder.parent) if folder.name in _PARTS else (folder,)
    return next((place for place in places if (place / "config.yaml").is_file()), None)


def _without(dataset: Any, settings: DataSettings) -> Any:
    return WithoutClasses(dataset, settings.held_out) if settings.held_out else dataset


def samples(dataset: Any, progress: Progress | None = None) -> Iterator[Any]:
    """The samples of a data set one after the other."""
    for index in range(len(dataset)):
        sample = dataset[index]
        yield sample
        if progress:
            progress(index + 1, len(dataset), sample.name)
