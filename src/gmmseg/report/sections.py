"""Numbers in, sections out: what the results, logs and predictions of models become on the page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from gmmseg.class_colours import Colours
from gmmseg.json_tree import JSON
from gmmseg.report import plots
from gmmseg.report.panels import Example, panel
from gmmseg.report.parts import Column, Figure, Highlight, Section, Table
from gmmseg.report.stored import histogram_from_curve


@dataclass(frozen=True, eq=False)
class Subject:
    """A model the report is about: its ``results`` as loaded from results.json (None where it has none), the
    records of its training ``log``, and its ``config`` as text."""

    name: str
    results: JSON | None
    log: list[JSON]
    config: str


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


def highlights(subjects: Sequence[Subject]) -> tuple[Highlight, ...]:
    """The main numbers of the first subject, with those of the others beside them."""
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
    examples: Sequence[Example], classes: Classes, promises: Mapping[str, str] | None = None
) -> Section | None:
    """What the models predict for each example; None without examples."""
    if not examples:
        return None
    text = (
        "Bright is strange. Striped pixels are unknown to the model: they lie above its own threshold, "
        "chosen on known pixels alone."
    )
    promised = [f"The threshold of `{name}` {words}." for name, words in (promises or {}).items()]
    return Section(
        "What it looks like",
        " ".join([text, *promised]),
        legend=tuple(zip(classes.names, classes.colours)),
        galleries=tuple(panel(example, classes.colours) for example in examples),
    )


def unknown_section(subjects: Sequence[Subject]) -> Section | None:
    """ROC and precision-recall of every score on the first anomaly set, histograms of each model's best."""
    curves: dict[str, JSON] = {}
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


def calibration_section(
    subjects: Sequence[Subject], fitted: Sequence[tuple[FittedPoints, Classes]]
) -> Section | None:
    """The reliability diagram, and the points and mixtures of each model that has any; None without both."""
    tables = {
        subject.name: entry["reliability"]
        for subject, entry in _first_set(subjects, "closed_set").items()
        if "reliability" in entry
    }
    figures = [plots.reliability_diagram(tables)] if tables else []
    figures += [_projection(*each) for each in fitted]
    if not figures:
        return None
    text = (
        "A calibrated model is right as often as it says: its line lies on the diagonal. Beside it the "
        "points of known classes, the mixtures that describe them, and where unknown objects fall."
    )
    return Section("Calibration and the mixtures", text, figures=tuple(figures))


def training_section(subjects: Sequence[Subject]) -> Section | None:
    """Curves of loss, validation and EM's own numbers over the steps; None where no subject has a log."""
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


def settings_section(subjects: Sequence[Subject]) -> Section | None:
    """The configurations, and the versions behind the first subject's results; None where there are none."""
    texts = [f"# {subject.name}\n{subject.config}" for subject in subjects if subject.config]
    known = [(subject.results or {}).get("versions") for subject in subjects[:1]]
    versions = [f"# versions\n{each}" for each in known if each]
    if not texts + versions:
        return None
    return Section("Settings", "Everything needed to run it again.", details="\n".join(texts + versions))


def _entries(subjects: Iterable[Subject], task: str) -> Iterable[tuple[Subject, str, JSON]]:
    """(subject, set, entry) of all results of a task: closed_set or anomaly."""
    for subject in subjects:
        for key, entry in (subject.results or {"sets": {}})["sets"].items():
            if entry["task"] == task:
                yield subject, key, entry


def _first_set(subjects: Sequence[Subject], task: str) -> dict[Subject, JSON]:
    """The entries of the first set of this kind that the first subject with any was judged on."""
    entries = list(_entries(subjects, task))
    return {subject: entry for subject, key, entry in entries if key == entries[0][1]}


def _closed_set_table(subjects: Sequence[Subject]) -> Table | None:
    rows = [
        (subject.name, key, *(100 * entry["metrics"][name] for name in ("miou", "pixel_accuracy", "ece")))
        for subject, key, entry in _entries(subjects, "closed_set")
    ]
    columns = (Column("mIoU %", "higher"), Column("accuracy %", "higher"), Column("ECE %", "lower", 2))
    return _table("model", columns, rows, "Known classes") if rows else None


def _anomaly_table(subjects: Sequence[Subject]) -> Table | None:
    rows = [
        (f"{subject.name}: {name}", key, *(100 * score[metric] for metric in ("auroc", "ap", "fpr95")))
        for subject, key, entry in _entries(subjects, "anomaly")
        for name, score in entry["scores"].items()
    ]
    columns = (Column("AUROC %", "higher"), Column("AP %", "higher"), Column("FPR95 %", "lower"))
    caption = "Finding unknown objects, pooled over all pixels"
    return _table("model: score", columns, rows, caption) if rows else None


def _threshold_table(subjects: Sequence[Subject]) -> Table | None:
    """What the models' own thresholds flag on each set."""
    rows = []
    for task in ("closed_set", "anomaly"):
        for subject, key, entry in _entries(subjects, task):
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
    entries = [each for task in ("closed_set", "anomaly") for each in _entries(subjects, task)]
    found = {subject.name: entry["at_threshold"] for subject, _, entry in entries if "at_threshold" in entry}
    return {name: each["promise"] for name, each in found.items()}


def _table(subject: str, columns: tuple[Column, ...], rows: list[tuple], caption: str) -> Table:
    """Rows of (subject, set, numbers); a single set goes into the caption, so that phones show numbers."""
    sets = {row[1] for row in rows}
    if len(sets) > 1:
        return Table((Column(subject), Column("set"), *columns), tuple(rows), caption)
    narrow = tuple((row[0], *row[2:]) for row in rows)
    return Table((Column(subject), *columns), narrow, f"{caption}: {sets.pop()}")


def _highlight(label: str, subject: Subject, values: dict[str, float]) -> list[Highlight]:
    """The subject's own value with the others' as a note; nothing where the subject has none."""
    if subject.name not in values:
        return []
    texts = {name: f"{100 * value:.1f} %" for name, value in values.items()}
    own = texts.pop(subject.name)
    return [Highlight(label, own, ", ".join(f"{name} {text}" for name, text in texts.items()))]


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
