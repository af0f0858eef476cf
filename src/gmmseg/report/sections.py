"""Numbers in, sections out: what the results, logs and predictions of models become on the page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from gmmseg.class_colours import Colours
from gmmseg.json_tree import JSON, Value
from gmmseg.report import plots
from gmmseg.report.class_figures import interval_text
from gmmseg.report.panels import Example, panel
from gmmseg.report.parts import Cell, Column, Figure, Highlight, Section, Slider, Table
from gmmseg.report.stored import histogram_from_curve
from gmmseg.report.subjects import Subject, entries, first_set


@dataclass(frozen=True, eq=False)
class FittedPoints:
    """Points (n d) of known classes with their labels (n), unknown points (m d) or None, and the means and
    variances (c k d) of the mixtures that describe the classes."""

    points: Tensor
    labels: Tensor
    unknown: Tensor | None
    means: Tensor
    variances: Tensor


@dataclass(frozen=True)
class Classes:
    """Names and colours of the classes, in the order of their train ids."""

    names: Sequence[str]
    colours: Colours


_INTERVAL = Column("95 % interval")


def highlights(subjects: Sequence[Subject]) -> tuple[Highlight, ...]:
    """The main numbers of the first subject, with those of the others beside them."""
    found = []
    known, strange = first_set(subjects, "closed_set")[1], first_set(subjects, "anomaly")[1]
    for label, metric in (("mIoU", "miou"), ("calibration error (ECE)", "ece")):
        values = {subject.name: entry["metrics"][metric] for subject, entry in known.items()}
        sure = {subject.name: entry.get("intervals", {}).get(metric) for subject, entry in known.items()}
        found += _highlight(label, subjects[0], values, interval_text(sure.get(subjects[0].name)))
    best = {
        subject.name: max(entry["scores"].values(), key=lambda score: score["ap"])
        for subject, entry in strange.items()
    }
    own = best.get(subjects[0].name, {}).get("intervals", {}).get("ap")
    values = {name: score["ap"] for name, score in best.items()}
    found += _highlight("AP on unknown objects, best score", subjects[0], values, interval_text(own))
    return tuple(found)


def results_section(subjects: Sequence[Subject]) -> Section | None:
    """Tables of the closed-set and the anomaly metrics; None where no subject has results."""
    made = (_closed_set_table(subjects), _anomaly_table(subjects), _threshold_table(subjects))
    tables = [table for table in made if table is not None]
    text = (
        "mIoU is that of one confusion matrix over the whole set; ECE has 15 bins of the top posterior. "
        "AUROC, AP and FPR95 pool every pixel of the set. `nll` is the mixtures' negative log-likelihood "
        "(`nll_winner`: of the best component alone), `typicality` how far it lies from what is usual for "
        "the class a pixel is taken for. `density` is the same of the backbone's maps, for models that "
        "`gmmseg fit` gave one, and `fused` that and `energy` together; the other scores "
        "read the posterior or the logits."
    )
    text += "".join(f"\n\nThe threshold of `{name}` {words}." for name, words in _promises(subjects).items())
    return Section("Results", text, tuple(tables)) if tables else None


def pictures_section(
    examples: Sequence[Example],
    classes: Classes,
    promises: Mapping[str, str] | None = None,
    slider: Slider | None = None,
) -> Section | None:
    """What the models predict for each example, and a slider that moves what is unknown; None without
    examples."""
    if not examples:
        return None
    flagged = any(maps.unknown is not None for example in examples for maps in example.models.values())
    outlined = (
        "Outlined pixels are unknown to the model: they lie above its own threshold, chosen on known pixels "
        "alone. "
    )
    text = (
        f"Bright is strange. {outlined if flagged else ''}Pictures open large, to be compared with the image."
    )
    # A slider says itself what the thresholds promise.
    said = (promises or {}).items() if slider is None else ()
    promised = [f"The threshold of `{name}` {words}." for name, words in said]
    start = 0 if slider is None else slider.start
    return Section(
        "What it looks like",
        " ".join([text, *promised]),
        legend=tuple(zip(classes.names, classes.colours)),
        galleries=tuple(panel(example, classes.colours, start) for example in examples),
        slider=slider,
    )


def unknown_section(subjects: Sequence[Subject]) -> Section | None:
    """ROC and precision-recall of every score on the first anomaly set, and histograms: of the score that a
    model shows, with its threshold, and of its best one; None without curves."""
    curves: dict[str, JSON] = {}
    histograms: list[Figure] = []
    key, found = first_set(subjects, "anomaly")
    for subject, entry in found.items():
        scores = {name: score for name, score in entry["scores"].items() if "curve" in score}
        for name, score in scores.items():
            numbers = {"auroc": score["auroc"], "ap": score["ap"]}
            curves[f"{subject.name}: {name}"] = {**score["curve"], **numbers}
        histograms += _histograms(subject.name, scores, entry.get("at_threshold", {}))
    figures = [figure for draw in (plots.roc_curves, plots.pr_curves) if (figure := draw(curves)) is not None]
    if not figures:
        return None
    return Section(
        "Finding the unknown",
        f"Every pixel of `{key}`, ignored ones left out. The histograms show the score that a model shows, "
        "with its threshold, and its best score where that is another one.",
        figures=(*figures, *histograms),
    )


def _histograms(model: str, scores: Mapping[str, JSON], flagging: Mapping[str, Value]) -> list[Figure]:
    """Of the score that the threshold is of, as far as it is known, and of the best one."""
    if not scores:
        return []
    best = max(scores, key=lambda name: scores[name]["ap"])
    shown = flagging.get("score")
    names = dict.fromkeys(name for name in (shown, best) if name is not None and name in scores)
    made = {name: histogram_from_curve(scores[name]["curve"]) for name in names}
    return [
        plots.score_histogram(f"{model}: {name}", histogram, flagging["threshold"] if name == shown else None)
        for name, histogram in made.items()
        if histogram is not None  # a score that is the same everywhere has none
    ]


def calibration_section(
    subjects: Sequence[Subject], fitted: Sequence[tuple[FittedPoints, Classes]]
) -> Section | None:
    """The reliability diagram, and the points and mixtures of each model that has any; None without both."""
    tables = {
        subject.name: entry["reliability"]
        for subject, entry in first_set(subjects, "closed_set")[1].items()
        if "reliability" in entry
    }
    reliability = plots.reliability_diagram(tables)
    figures = ([] if reliability is None else [reliability]) + [_projection(*each) for each in fitted]
    if not figures:
        return None
    text = (
        "A calibrated model is right as often as it says: its line lies on the diagonal. Beside it the "
        "points of known classes, the mixtures that describe them, and where unknown objects fall."
    )
    return Section("Calibration and the mixtures", text, figures=tuple(figures))


def training_section(subjects: Sequence[Subject]) -> Section | None:
    """Curves of loss, validation and EM's own numbers over the steps; None where no log has two of any."""
    logs = {subject.name: subject.log for subject in subjects if subject.log}
    if not logs:
        return None
    train = {name: [e for e in log if e.get("kind") == "train"] for name, log in logs.items()}
    validation = {name: [e for e in log if e.get("kind") == "validation"] for name, log in logs.items()}
    health = {
        name: [{"step": e["step"], **e["em"]} for e in records if isinstance(e.get("em"), dict)]
        for name, records in train.items()
    }
    curves = (
        plots.training_curve(train, "posterior", "cross-entropy of the posterior"),
        plots.training_curve(validation, "miou", "mIoU on the validation set"),
        *plots.em_diagnostics(health),
    )
    figures = tuple(figure for figure in curves if figure is not None)
    text = "Loss and validation, then what EM reports of its mixtures."
    return Section("Training", text, figures=figures) if figures else None


def settings_section(subjects: Sequence[Subject]) -> Section | None:
    """The configurations, and the versions behind the first subject's results; None where there are none."""
    texts = [f"# {subject.name}\n{subject.config}" for subject in subjects if subject.config]
    known = [(subject.results or {}).get("versions") for subject in subjects[:1]]
    versions = [f"# versions\n{each}" for each in known if each]
    if not texts + versions:
        return None
    return Section("Settings", "Everything needed to run it again.", details="\n".join(texts + versions))


def _closed_set_table(subjects: Sequence[Subject]) -> Table | None:
    columns = (Column("mIoU %", "higher"), Column("accuracy %", "higher"), Column("ECE %", "lower", 2))
    rows = [
        (subject.name, key, *_figures(entry["metrics"], ("miou", "pixel_accuracy", "ece"), entry))
        for subject, key, entry in entries(subjects, "closed_set")
    ]
    return _table("model", _with_intervals(columns), rows, "Known classes") if rows else None


def _anomaly_table(subjects: Sequence[Subject]) -> Table | None:
    columns = (Column("AUROC %", "higher"), Column("AP %", "higher"), Column("FPR95 %", "lower"))
    rows = [
        (f"{subject.name}: {name}", key, *_figures(score, ("auroc", "ap", "fpr95"), score))
        for subject, key, entry in entries(subjects, "anomaly")
        for name, score in entry["scores"].items()
    ]
    caption = "Finding unknown objects, pooled over all pixels"
    return _table("model: score", _with_intervals(columns), rows, caption) if rows else None


def _figures(values: JSON, names: Sequence[str], judged: JSON) -> Iterator[Cell]:
    """Each figure in percent, followed by its interval, None where there is none."""
    for name in names:
        yield 100 * values[name]
        yield interval_text(judged.get("intervals", {}).get(name))


def _with_intervals(columns: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(each for column in columns for each in (column, _INTERVAL))


def _threshold_table(subjects: Sequence[Subject]) -> Table | None:
    """What the models' own thresholds flag on each set."""
    rows = []
    for task in ("closed_set", "anomaly"):
        for subject, key, entry in entries(subjects, task):
            found = entry.get("at_threshold")
            if found is not None:
                shares = (found.get(name) for name in ("flagged_known", "images_with_alarm", "recall"))
                rows.append(
                    (subject.name, key, *(None if share is None else 100 * share for share in shares))
                )
    columns = (
        Column("flagged known pixels %", "lower", 2),
        Column("normal images with an alarm %", "lower"),
        Column("unknown pixels found %", "higher"),
    )
    return _table("model", columns, rows, "At the models' own thresholds") if rows else None


def _promises(subjects: Sequence[Subject]) -> dict[str, str]:
    """By name of a subject, what its threshold promises."""
    judged = [each for task in ("closed_set", "anomaly") for each in entries(subjects, task)]
    found = {subject.name: entry["at_threshold"] for subject, _, entry in judged if "at_threshold" in entry}
    return {name: each["promise"] for name, each in found.items()}


def _table(subject: str, columns: tuple[Column, ...], rows: list[tuple], caption: str) -> Table:
    """Rows of (subject, set, numbers); a single set goes into the caption, so that phones show numbers, and
    intervals that nobody has are left out."""
    whole = (Column(subject), Column("set"), *columns)
    sets = {row[1] for row in rows}
    empty = {i for i, column in enumerate(whole) if column == _INTERVAL and not any(row[i] for row in rows)}
    kept = [i for i in range(len(whole)) if i not in empty and not (i == 1 and len(sets) == 1)]
    shown = tuple(tuple(row[i] for i in kept) for row in rows)
    return Table(
        tuple(whole[i] for i in kept), shown, caption if len(sets) > 1 else f"{caption}: {sets.pop()}"
    )


def _highlight(
    label: str, subject: Subject, values: dict[str, float], interval: str | None = None
) -> list[Highlight]:
    """The subject's own value, with its interval and the others' as a note; nothing where it has none."""
    if subject.name not in values:
        return []
    texts = {name: f"{100 * value:.1f} %" for name, value in values.items()}
    own = texts.pop(subject.name)
    notes = [f"95 %: {interval}"] if interval else []
    notes += [f"{name} {text}" for name, text in texts.items()]
    return [Highlight(label, own, ", ".join(notes))]


def _projection(fitted: FittedPoints, classes: Classes) -> Figure:
    return plots.projection(
        fitted.points,
        fitted.labels,
        fitted.means,
        fitted.variances,
        classes.names,
        classes.colours,
        unknown=fitted.unknown,
    )
