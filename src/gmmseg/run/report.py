"""The report of runs and results: files read, models opened, examples predicted, sections written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import gmmseg
from gmmseg import run
from gmmseg.atomic import write_bytes
from gmmseg.class_colours import default_colours
from gmmseg.evaluation import AnomalyCurve, load_results
from gmmseg.evaluation.records import set_name
from gmmseg.inference import Exemplar, Predictor, explain
from gmmseg.inference.heat import model_scale
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter
from gmmseg.models.companion import companions_in_words
from gmmseg.models.recipe import network_name
from gmmseg.models.saving import CONFIG_FILE, describe
from gmmseg.report import sections
from gmmseg.report.class_figures import classes_section
from gmmseg.report.explained import ExplainedPixel, explained_section
from gmmseg.report.html import Report
from gmmseg.report.image_ranking import images_section, standouts
from gmmseg.report.moving_threshold import with_slider
from gmmseg.report.panels import Example, ModelMaps, side_by_side
from gmmseg.report.parts import Section
from gmmseg.report.sections import Classes, FittedPoints
from gmmseg.report.sheet import contact_sheet
from gmmseg.report.stored import read_log
from gmmseg.report.subjects import Subject, entries
from gmmseg.run.runs import weights_of
from gmmseg.samples import Sample, SegmentationDataset, walk

_EXAMPLES = 3
_SEARCHED = 40  # images looked through for examples with something unknown in them
LEAST_UNKNOWN = 0.01
"""Share of the pixels: what is smaller says little in a picture of this size."""
_PROJECTED = 12  # images whose points are drawn


@dataclass(frozen=True, eq=False)
class Source:
    """A run folder or a results file: what its files say, and its model where there are weights."""

    subject: Subject
    model: Segmenter | None


def write_report(sources: Sequence[Path], datasets: Sequence[SegmentationDataset], out: Path) -> None:
    """One HTML page about ``sources`` (the subject first, then its twin), with pictures of ``datasets``."""
    opened = open_sources([Path(source) for source in sources])
    subjects = [source.subject for source in opened]
    models = {source.subject.name: source.model for source in opened if source.model is not None}
    written = [
        sections.results_section(subjects),
        _pictures(models, datasets, subjects),
        _explained(opened, [Path(source) for source in sources], datasets),
        classes_section(subjects),
        images_section(subjects),
        sections.unknown_section(subjects),
        sections.calibration_section(subjects, _fitted(models, datasets)),
        sections.training_section(subjects),
        sections.settings_section(subjects),
    ]
    report = Report(
        " and ".join(subject.name for subject in subjects),
        tuple(section for section in written if section is not None),
        "Made by `gmmseg report`. Every number is in the results files beside the runs.",
        sections.highlights(subjects),
        (("made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, gmmseg {gmmseg.__version__}"), *_facts(opened)),
    )
    report.write(Path(out))


def _facts(sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    """What the figures are of: data, and of each model network, head, parameters and training."""
    sets = {
        key: entry.get("images")
        for source in sources
        for key, entry in (source.subject.results or {"sets": {}})["sets"].items()
    }
    if sets:
        counts = (f"{key} ({count} images)" if count else key for key, count in sets.items())
        yield "data", ", ".join(counts)
    for source in sources:
        if source.model is not None:
            yield source.subject.name, _network(source.model, source.subject)


def _network(model: Segmenter, subject: Subject) -> str:
    mixture = model.mixture
    head = "softmax head" if mixture is None else f"mixtures of {mixture.means.shape[1]} components per class"
    beside = "".join(f", {words}" for words in companions_in_words(describe(model)["companions"]))
    beside += "" if model.density is None else " and a density beside them"
    parameters = sum(each.numel() for each in model.parameters()) / 1e6
    steps = max((entry["step"] for entry in subject.log), default=0)
    trained = f", trained for {steps} steps" if steps else ""
    name = network_name(model.recipe)
    return (
        f"{name}, {head}{beside}, {model.num_classes} classes, {parameters:.2f} million parameters{trained}"
    )


def write_picture(sources: Sequence[Path], dataset: SegmentationDataset, out: Path) -> None:
    """One PNG of what the runs' models, side by side, make of the image of an anomaly set that is typical of
    the first of them (`typical_image`)."""
    paths = [Path(source) for source in sources]
    names = distinct_names([path.name for path in paths], paths)
    models = {name: run.open_model(path) for name, path in zip(names, paths)}
    subject = next(iter(models.values()))
    example, classes = _example(models, dataset, typical_image(subject, dataset)), _classes(subject)
    write_bytes(Path(out), contact_sheet([side_by_side(example, classes.colours)], classes))


def typical_image(model: Segmenter, dataset: SegmentationDataset) -> int:
    """The image that stands in the middle when ordered by how well ``model`` finds the unknown in it.

    That is the average precision of its anomaly score on this image alone. In question are the brighter half
    (a night scene shows little in print) of those of the first images of an anomaly set in which at least
    LEAST_UNKNOWN of the pixels are unknown. Of an even number, the worse of the two in the middle is taken.
    """
    predictor, curve, precision = Predictor(model), AnomalyCurve(), dict[int, float]()
    for index in _bright_with_unknown(dataset):
        sample = dataset[index]
        curve.reset()
        curve.update(predictor.predict(sample.image).anomaly, sample.labels)
        precision[index] = curve.compute()["ap"]
    return sorted(precision, key=precision.__getitem__)[(len(precision) - 1) // 2]


def _bright_with_unknown(dataset: SegmentationDataset) -> list[int]:
    """What `typical_image` chooses among; the image with most unknown pixels where there is none."""
    shares, light = dict[int, float](), dict[int, float]()
    for index in range(min(_SEARCHED, len(dataset))):
        sample = dataset[index]
        shares[index] = float((sample.labels == 1).float().mean())
        light[index] = float(sample.image.float().mean())
    large = [index for index, share in shares.items() if share >= LEAST_UNKNOWN]
    brightest_first = sorted(large, key=light.__getitem__, reverse=True)
    return brightest_first[: (len(large) + 1) // 2] or [max(shares, key=shares.__getitem__)]


def open_sources(paths: Sequence[Path]) -> list[Source]:
    """The sources, each under a name of its own."""
    sources = [open_source(path) for path in paths]
    names = distinct_names([source.subject.name for source in sources], paths)
    return [Source(replace(source.subject, name=name), source.model) for source, name in zip(sources, names)]


def distinct_names(names: Sequence[str], sources: Sequence[Path]) -> list[str]:
    """The names; those that occur twice with as many folders above them as tell them apart."""
    if len({source.resolve() for source in sources}) < len(sources):
        raise ValueError(f"{', '.join(map(str, sources))}: the same source twice; give each once")
    chosen = list(names)
    for index, name in enumerate(names):
        rivals = [source.resolve() for source, other in zip(sources, names) if other == name]
        own = sources[index].resolve()
        if len(rivals) > 1:
            depth = next(
                d
                for d in range(1, len(own.parts) + 1)
                if [rival.parts[-d:] for rival in rivals].count(own.parts[-d:]) == 1
            )
            chosen[index] = "/".join(own.parts[-depth:])
    return chosen


def open_source(path: Path) -> Source:
    """What a run folder (results.json, log.jsonl, config.yaml, weights) or a results file holds."""
    if path.is_file():
        results = load_results(path)
        return Source(Subject(str(results["name"]), results, [], ""), None)
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: neither a run folder nor a results file")
    results_file, log, config = path / "results.json", path / "log.jsonl", path / "config.yaml"
    trained = any((place / CONFIG_FILE).is_file() for place in (path, *weights_of(path)))
    if not (results_file.is_file() or trained):
        raise FileNotFoundError(f"{path}: holds neither results.json nor trained weights")
    subject = Subject(
        path.name,
        load_results(results_file) if results_file.is_file() else None,
        read_log(log) if log.is_file() else [],
        config.read_text(encoding="utf-8") if config.is_file() else "",
    )
    return Source(subject, run.open_model(path) if trained else None)


def _classes(model: Segmenter) -> Classes:
    names = model.label_names or tuple(str(index) for index in range(model.num_classes))
    return Classes(names, model.colours or default_colours(model.num_classes))


def _fitted(
    models: Mapping[str, Segmenter], datasets: Sequence[SegmentationDataset]
) -> list[tuple[FittedPoints, Classes]]:
    """Points and mixtures of every generative model, on the first labelled and the first anomaly set."""
    known = next((each for each in datasets if each.label_space is not None), None)
    strange = next((each for each in datasets if each.label_space is None), None)
    if known is None:
        return []
    generative = [model for model in models.values() if model.mixture is not None]
    return [(_fitted_points(model, known, strange), _classes(model)) for model in generative]


@torch.no_grad()
def _fitted_points(
    model: Segmenter, known: SegmentationDataset, strange: SegmentationDataset | None
) -> FittedPoints:
    points, labels = _points(model, known)
    unknown = None
    if strange is not None:
        everything, masks = _points(model, strange)
        unknown = everything[masks == 1]
    keep, mixture = labels != IGNORE, model.mixture
    assert mixture is not None
    return FittedPoints(points[keep], labels[keep], unknown, mixture.means, mixture.variances)


def _points(model: Segmenter, dataset: SegmentationDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n d) and labels (n) of the first few images."""
    found, predictor = [], Predictor(model)
    for sample in walk(dataset, indices=range(min(_PROJECTED, len(dataset)))):
        found += [model.em_points(*each)[:2] for each in predictor.outputs(sample)]
    return torch.cat([points for points, _ in found]), torch.cat([labels for _, labels in found])


def _pictures(
    models: Mapping[str, Segmenter], datasets: Sequence[SegmentationDataset], subjects: Sequence[Subject]
) -> Section | None:
    """The section of examples, anomaly sets first; None without models or data."""
    if not models:
        return None
    chosen = [
        (_example(models, dataset, index), why)
        for dataset in sorted(datasets, key=lambda each: each.label_space is not None)
        for index, why in _shown(dataset, subjects).items()
    ]
    if not chosen:
        return None
    examples = [replace(example, name=f"{example.name}: {why}") for example, why in chosen]
    calibrations = {name: model.calibration for name, model in models.items()}
    live, slider = with_slider(examples, calibrations)
    return sections.pictures_section(live, _classes(next(iter(models.values()))), _promises(models), slider)


def _shown(dataset: SegmentationDataset, subjects: Sequence[Subject]) -> dict[int, str]:
    """Examples to show, by their place in the set, and why: some of them all, the worst and the strangest."""
    usual = "one of the set" if dataset.label_space is not None else "many unknown pixels"
    chosen = dict.fromkeys(_chosen(dataset), usual)
    wanted = f"{dataset.name}/{dataset.split}"
    judged = [
        entry
        for task in ("closed_set", "anomaly")
        for _, key, entry in entries(subjects, task)
        if set_name(key) == wanted and "images_ranked" in entry
    ]
    for index, (name, why) in standouts(judged[0], 1).items() if judged else ():
        # The results may be of other images than those at hand.
        if index < len(dataset) and dataset[index].name == name:
            chosen[index] = f"{why}, {chosen[index]}" if index in chosen else why
    return chosen


def _explained(
    opened: Sequence[Source], paths: Sequence[Path], datasets: Sequence[SegmentationDataset]
) -> Section | None:
    """The strangest pixel of one image of each set, explained by the first model with mixtures."""
    for source, path in zip(opened, paths):
        if source.model is not None and source.model.mixture is not None:
            predictor, index = Predictor(source.model), run.exemplars_of(path, source.model) or ()
            samples = [dataset[_chosen(dataset)[0]] for dataset in datasets if len(dataset)]
            explained = [_strangest_pixel(predictor, sample, index) for sample in samples]
            return explained_section(source.subject.name, explained)
    return None


def _strangest_pixel(predictor: Predictor, sample: Sample, index: Sequence[Exemplar]) -> ExplainedPixel:
    """Why the pixel with the highest score in an image is what it is."""
    anomaly = predictor.predict(sample.image).anomaly
    y, x = divmod(int(anomaly.argmax()), anomaly.shape[1])
    return ExplainedPixel(
        sample.name,
        sample.image.permute(1, 2, 0).numpy(),
        explain(predictor, sample.image, x, y, index),
    )


def _promises(models: Mapping[str, Segmenter]) -> dict[str, str]:
    """By name, what the threshold of each model that has one promises."""
    known = {name: model.calibration for name, model in models.items() if model.calibration is not None}
    return {name: each.promise_text() for name, each in known.items() if each.threshold is not None}


def _chosen(dataset: SegmentationDataset) -> list[int]:
    """Examples to show: of an anomaly set those with most unknown pixels, of others the first."""
    if dataset.label_space is not None:
        return list(range(min(2, len(dataset))))
    sizes = [int((dataset[index].labels == 1).sum()) for index in range(min(_SEARCHED, len(dataset)))]
    return sorted(np.argsort(sizes)[::-1][:_EXAMPLES].tolist())


def _example(models: Mapping[str, Segmenter], dataset: SegmentationDataset, index: int) -> Example:
    """One image of a set and what each model makes of it."""
    sample = dataset[index]
    maps = {}
    for name, model in models.items():
        predicted = Predictor(model).predict(sample.image)
        maps[name] = ModelMaps(
            predicted.labels.numpy(),
            predicted.posterior.amax(0).numpy(),
            predicted.anomaly.numpy(),
            predicted.threshold,
            None if predicted.unknown is None else predicted.unknown.numpy(),
            model_scale(predicted.calibration),
        )
    image, labels = sample.image.permute(1, 2, 0).numpy(), sample.labels.numpy()
    known = dataset.label_space is not None
    return Example(sample.name, image, maps, labels if known else None, None if known else labels)
