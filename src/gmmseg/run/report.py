"""The report of runs and results: what was measured, what it looks like, how it came about."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gmmseg import run
from gmmseg.atomic import write_bytes
from gmmseg.evaluation import load_results
from gmmseg.inference import Predictor
from gmmseg.inference.pictures import default_colours
from gmmseg.labels import IGNORE
from gmmseg.models import Segmenter
from gmmseg.report import plots
from gmmseg.report.histograms import histogram_from_curve
from gmmseg.report.logs import read_log
from gmmseg.report.panels import Example, ModelMaps, panel
from gmmseg.report.report import Report
from gmmseg.report.sections import Column, Figure, Gallery, Highlight, Section, Table
from gmmseg.report.sheet import contact_sheet
from gmmseg.samples import walk

_EXAMPLES = 4
_SEARCHED = 40  # images looked through for examples with something unknown in them
_PROJECTED = 12  # images whose points are drawn


@dataclass(frozen=True, eq=False)
class Subject:
    """A run folder or a results file, and what of it is there."""

    name: str
    results: dict[str, Any] | None
    log: list[dict[str, Any]]
    config: str
    model: Segmenter | None


def write_report(sources: Sequence[Path], datasets: Sequence[Any], out: Path) -> None:
    """One HTML page about ``sources`` (the subject first, then its twin), with pictures of ``datasets``."""
    subjects = open_subjects([Path(source) for source in sources])
    sections = [
        _summary(subjects),
        _pictures(subjects, datasets),
        _unknown(subjects),
        _calibration(subjects, datasets),
        _training(subjects),
        _settings(subjects),
    ]
    report = Report(
        " and ".join(subject.name for subject in subjects),
        tuple(section for section in sections if section is not None),
        "Made by `gmmseg report`. Every number is in the results files beside the runs.",
        _highlights(subjects),
    )
    report.write(Path(out))


def write_picture(sources: Sequence[Path], dataset: Any, out: Path, *, examples: int = 2) -> None:
    """One PNG of what the runs' models make of ``examples`` with many unknown pixels in an anomaly set."""
    paths = [Path(source) for source in sources]
    names = distinct_names([path.name for path in paths], paths)
    models = {name: run.open_model(path) for name, path in zip(names, paths)}
    colours = _colours(next(iter(models.values())))
    galleries = [_example(models, dataset, index, colours) for index in _chosen(dataset)[:examples]]
    write_bytes(Path(out), contact_sheet(galleries))


def open_subjects(sources: Sequence[Path]) -> list[Subject]:
    """The sources, each under a name of its own."""
    subjects = [open_subject(source) for source in sources]
    names = distinct_names([subject.name for subject in subjects], sources)
    return [replace(subject, name=name) for subject, name in zip(subjects, names)]


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


def open_subject(source: Path) -> Subject:
    """What a run folder (results.json, log.jsonl, config.yaml, weights) or a results file holds."""
    if source.is_file():
        results = load_results(source)
        return Subject(str(results["name"]), results, [], "", None)
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: neither a run folder nor a results file")
    results_file, log, config = source / "results.json", source / "log.jsonl", source / "config.yaml"
    places = (source, source / "best", source / "final")
    trained = any((place / "config.json").is_file() for place in places)
    if not (results_file.is_file() or trained):
        raise FileNotFoundError(f"{source}: holds neither results.json nor trained weights")
    return Subject(
        source.name,
        load_results(results_file) if results_file.is_file() else None,
        read_log(log) if log.is_file() else [],
        config.read_text(encoding="utf-8") if config.is_file() else "",
        run.open_model(source) if trained else None,
    )


# Numbers ----------------------------------------------------------------------------------------------


def _entries(subjects: Iterable[Subject], task: str) -> Iterable[tuple[Subject, str, dict[str, Any]]]:
    for subject in subjects:
        for key, entry in (subject.results or {"sets": {}})["sets"].items():
            if entry["task"] == task:
                yield subject, key, entry


def _summary(subjects: list[Subject]) -> Section | None:
    closed = [
        (subject.name, key, *(100 * entry["metrics"][name] for name in ("miou", "pixel_accuracy", "ece")))
        for subject, key, entry in _entries(subjects, "closed_set")
    ]
    detection = [
        (f"{subject.name}: {name}", key, *(100 * score[metric] for metric in ("auroc", "ap", "fpr95")))
        for subject, key, entry in _entries(subjects, "anomaly")
        for name, score in entry["scores"].items()
    ]
    tables = []
    if closed:
        columns = (
            Column("mIoU %", "higher"),
            Column("accuracy %", "higher"),
            Column("ECE %", "lower", 2),
        )
        tables.append(_table("model", columns, closed, "Known classes"))
    if detection:
        columns = (Column("AUROC %", "higher"), Column("AP %", "higher"), Column("FPR95 %", "lower"))
        tables.append(
            _table("model: score", columns, detection, "Finding unknown objects, pooled over all pixels")
        )
    text = (
        "mIoU is that of one confusion matrix over the whole set; ECE has 15 bins of the top posterior. "
        "AUROC, AP and FPR95 pool every pixel of the set. `nll` is the mixtures' negative log-likelihood "
        "(`nll_winner`: of the best component alone), `typicality` how far it lies from what is usual for "
        "the class a pixel is taken for; the other scores read the posterior or the logits."
    )
    return Section("Results", text, tuple(tables)) if tables else None


def _table(subject: str, columns: tuple[Column, ...], rows: list[tuple], caption: str) -> Table:
    """Rows of (subject, set, numbers); a single set goes into the caption, so that phones show numbers."""
    sets = {row[1] for row in rows}
    if len(sets) > 1:
        return Table((Column(subject), Column("set"), *columns), tuple(rows), caption)
    narrow = tuple((row[0], *row[2:]) for row in rows)
    return Table((Column(subject), *columns), narrow, f"{caption}: {sets.pop()}")


def _highlights(subjects: list[Subject]) -> tuple[Highlight, ...]:
    """The subject's main numbers, with the twin's beside them."""
    found = []
    known, strange = _first_set(subjects, "closed_set"), _first_set(subjects, "anomaly")
    for label, metric in (("mIoU", "miou"), ("calibration error (ECE)", "ece")):
        values = {subject.name: entry["metrics"][metric] for subject, entry in known.items()}
        found += _highlight(label, subjects[0], values)
    best = {
        subject.name: max(score["ap"] for score in entry["scores"].values())
        for subject, entry in strange.items()
    }
    found += _highlight("AP on unknown objects, best score", subjects[0], best)
    return tuple(found)


def _highlight(label: str, subject: Subject, values: dict[str, float]) -> list[Highlight]:
    """The subject's own value with the others' as a note; nothing where the subject has none."""
    if subject.name not in values:
        return []
    texts = {name: f"{100 * value:.1f} %" for name, value in values.items()}
    own = texts.pop(subject.name)
    return [Highlight(label, own, ", ".join(f"{name} {text}" for name, text in texts.items()))]


def _first_set(subjects: Sequence[Subject], task: str) -> dict[Subject, dict[str, Any]]:
    """The entries of the first set of this kind that the first subject with any was judged on."""
    entries = list(_entries(subjects, task))
    return {subject: entry for subject, key, entry in entries if key == entries[0][1]}


def _unknown(subjects: list[Subject]) -> Section | None:
    """ROC and precision-recall of every score on the first anomaly set, histograms of each model's best."""
    curves: dict[str, dict[str, Any]] = {}
    histograms: list[Figure] = []
    for subject, entry in _first_set(subjects, "anomaly").items():
        scores = {name: score for name, score in entry["scores"].items() if "curve" in score}
        for name, score in scores.items():
            numbers = {"auroc": score["auroc"], "ap": score["ap"]}
            curves[f"{subject.name}: {name}"] = {**score["curve"], **numbers}
        if scores:
            best = max(scores, key=lambda name: scores[name]["ap"])
            histogram = histogram_from_curve(scores[best]["curve"])
            if histogram is not None:  # a score that is the same everywhere has none
                histograms.append(plots.score_histogram(f"{subject.name}: {best}", histogram))
    if not curves:
        return None
    key = next(key for _, key, _ in _entries(subjects, "anomaly"))
    return Section(
        "Finding the unknown",
        f"Every pixel of `{key}`, ignored ones left out. The histograms show each model's best score.",
        figures=(plots.roc_curves(curves), plots.pr_curves(curves), *histograms),
    )


def _calibration(subjects: list[Subject], datasets: Sequence[Any]) -> Section | None:
    tables = {
        subject.name: entry["reliability"]
        for subject, entry in _first_set(subjects, "closed_set").items()
        if "reliability" in entry
    }
    figures = [plots.reliability_diagram(tables)] if tables else []
    figures += [figure for subject in subjects if (figure := _projection(subject, datasets)) is not None]
    if not figures:
        return None
    text = (
        "A calibrated model is right as often as it says: its line lies on the diagonal. Beside it the "
        "points of known classes, the mixtures that describe them, and where unknown objects fall."
    )
    return Section("Calibration and the mixtures", text, figures=tuple(figures))


@torch.no_grad()
def _projection(subject: Subject, datasets: Sequence[Any]) -> Figure | None:
    known = next((each for each in datasets if each.label_space is not None), None)
    strange = next((each for each in datasets if each.label_space is None), None)
    model = subject.model
    if model is None or model.mixture is None or known is None:
        return None
    points, labels = _points(model, known)
    unknown = None
    if strange is not None:
        everything, masks = _points(model, strange)
        unknown = everything[masks == 1]
    names = model.label_names or tuple(str(index) for index in range(model.num_classes))
    keep = labels != IGNORE
    mixture = model.mixture
    return plots.projection(
        points[keep],
        labels[keep],
        mixture.means,
        mixture.variances,
        names,
        _colours(model),
        unknown=unknown,
    )


def _points(model: Segmenter, dataset: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n d) and labels (n) of the first few images."""
    found, predictor = [], Predictor(model)
    for sample in walk(dataset, indices=range(min(_PROJECTED, len(dataset)))):
        found += [model.em_points(*each)[:2] for each in predictor.outputs(sample)]
    return torch.cat([points for points, _ in found]), torch.cat([labels for _, labels in found])


# Pictures ---------------------------------------------------------------------------------------------


def _pictures(subjects: list[Subject], datasets: Sequence[Any]) -> Section | None:
    models = {subject.name: subject.model for subject in subjects if subject.model is not None}
    if not models or not datasets:
        return None
    first = next(iter(models.values()))
    colours = _colours(first)
    galleries = tuple(
        _example(models, dataset, index, colours)
        for dataset in sorted(datasets, key=lambda each: each.label_space is not None)
        for index in _chosen(dataset)
    )
    names = first.label_names or tuple(str(index) for index in range(first.num_classes))
    text = (
        "Bright is strange. Striped pixels lie above the model's own threshold, chosen on known pixels alone."
    )
    return Section("What it looks like", text, legend=tuple(zip(names, colours)), galleries=galleries)


def _colours(model: Segmenter) -> Any:
    return model.colours or default_colours(model.num_classes)


def _chosen(dataset: Any) -> list[int]:
    """Examples to show: of an anomaly set those with most unknown pixels, of others the first."""
    if dataset.label_space is not None:
        return list(range(min(2, len(dataset))))
    sizes = [int((dataset[index].labels == 1).sum()) for index in range(min(_SEARCHED, len(dataset)))]
    return sorted(np.argsort(sizes)[::-1][:_EXAMPLES].tolist())


def _example(models: dict[str, Segmenter], dataset: Any, index: int, colours: Any) -> Gallery:
    sample = dataset[index]
    image = sample.image.permute(1, 2, 0).numpy()
    maps = {}
    for name, model in models.items():
        predicted = Predictor(model).predict(sample.image)
        maps[name] = ModelMaps(
            predicted.labels.numpy(),
            predicted.posterior.amax(0).numpy(),
            predicted.anomaly.numpy(),
            None if model.calibration is None else model.calibration.threshold,
        )
    labels = sample.labels.numpy()
    known = dataset.label_space is not None
    return panel(
        Example(sample.name, image, maps, labels if known else None, None if known else labels), colours
    )


# How it came about ------------------------------------------------------------------------------------


def _training(subjects: list[Subject]) -> Section | None:
    logs = {subject.name: subject.log for subject in subjects if subject.log}
    if not logs:
        return None
    train = {name: [e for e in log if e.get("kind") == "train"] for name, log in logs.items()}
    validation = {name: [e for e in log if e.get("kind") == "validation"] for name, log in logs.items()}
    health = {
        name: [{"step": e["step"], **e["em"]} for e in entries if isinstance(e.get("em"), dict)]
        for name, entries in train.items()
    }
    figures = [plots.training_curve(train, "posterior", "cross-entropy of the posterior")]
    if any(validation.values()):
        figures.append(plots.training_curve(validation, "miou", "mIoU on the validation set"))
    health = {name: entries for name, entries in health.items() if entries}
    if health:
        figures += plots.em_diagnostics(health)
    return Section(
        "Training", "Loss and validation, then what EM reports of its mixtures.", figures=tuple(figures)
    )


def _settings(subjects: list[Subject]) -> Section | None:
    texts = [f"# {subject.name}\n{subject.config}" for subject in subjects if subject.config]
    known = [(subject.results or {}).get("versions") for subject in subjects[:1]]
    versions = [f"# versions\n{each}" for each in known if each]
    if not texts + versions:
        return None
    return Section("Settings", "Everything needed to run it again.", details="\n".join(texts + versions))
