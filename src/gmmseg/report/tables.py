"""Results side by side, as Markdown, CSV and LaTeX; the paper's figures beside them, marked as quoted."""

import csv
import io
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from gmmseg.json_tree import JSON, Value
from gmmseg.printable import printable

QUOTED = "quoted from the paper"

# metric -> (heading, whether higher is better)
_METRICS = {
    "miou": ("mIoU", True),
    "mean_accuracy": ("mean accuracy", True),
    "pixel_accuracy": ("pixel accuracy", True),
    "ece": ("ECE", False),
    "ece_as_trained": ("ECE as trained", False),
    "classwise_ece": ("class-wise ECE", False),
    "auroc": ("AUROC", True),
    "ap": ("AP", True),
    "fpr95": ("FPR95", False),
    "f1_star": ("F1*", True),
    "siou": ("sIoU", True),
    "ppv": ("PPV", True),
}


# the splits the paper's figures are of; COCO-Stuff 10k has one test split under two names
_PAPER_SPLITS = {
    "cityscapes": ("val",),
    "ade20k": ("val",),
    "coco_stuff_10k": ("test", "val"),
    "fishyscapes_lost_and_found": ("val",),
    "road_anomaly": ("test",),
}


@dataclass(frozen=True)
class Figure:
    """A number in percent, and its confidence interval where there is one."""

    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """One model (and score): figures by (set, metric); ``quoted`` ones were not measured here."""

    heading: str
    figures: dict[tuple[str, str], Figure]
    quoted: bool = False


@dataclass(frozen=True)
class Comparison:
    """Columns of models over the same rows (set, metric)."""

    columns: tuple[Column, ...]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(set, metric) of every row that has a measured figure, sets in order of appearance."""
        measured = [key for column in self.columns if not column.quoted for key in column.figures]
        sets = list(dict.fromkeys(name for name, _ in measured))
        return [(name, metric) for name in sets for metric in _METRICS if (name, metric) in set(measured)]

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

    def markdown(self) -> str:
        """A Markdown table; the best measured figure of a row is bold."""
        heads = [_heading(column) for column in self.columns]
        lines = [
            _piped(["set", "metric", *heads]),
            _piped(["---", "---", *("---:" for _ in heads)]),
            *(_piped([row[0], _metric(row[1]), *self._cells(row, "**{}**")]) for row in self.rows),
        ]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A LaTeX tabular (booktabs); the best measured figure of a row is bold."""
        heads = [_escaped(_heading(column)) for column in self.columns]
        body = [
            [
                _escaped(row[0]),
                _metric(row[1], up=r"$\uparrow$", down=r"$\downarrow$"),
                *self._cells(row, r"\textbf{{{}}}"),
            ]
            for row in self.rows
        ]
        lines = [
            rf"\begin{{tabular}}{{ll{'r' * len(heads)}}}",
            r"\toprule",
            " & ".join(["set", "metric", *heads]) + r" \\",
            r"\midrule",
            *(" & ".join(cells) + r" \\" for cells in body),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Comma-separated values, in percent with full precision; empty where there is no figure."""
        text = io.StringIO()
        # Words are quoted, numbers are not.
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["set", "metric", *(_no_formula(_heading(column)) for column in self.columns)])
        for row in self.rows:
            figures = [column.figures.get(row) for column in self.columns]
            numbers = [None if figure is None else figure.value for figure in figures]
            writer.writerow([_no_formula(row[0]), row[1], *numbers])
        return text.getvalue()

    def _cells(self, row: tuple[str, str], bold: str) -> list[str]:
        best = self._best(row)
        return [_cell(column, row, bold if column is best else "{}") for column in self.columns]

    def _best(self, row: tuple[str, str]) -> Column | None:
        rivals = [c for c in self.columns if not c.quoted and row in c.figures]
        rivals = [c for c in rivals if not math.isnan(c.figures[row].value)]
        if len(rivals) < 2:
            return None
        sign = 1 if _METRICS[row[1]][1] else -1
        return max(rivals, key=lambda column: sign * column.figures[row].value)


def compare(results: Sequence[Mapping[str, Value]], *, paper: Sequence[str] = ()) -> Comparison:
    """``results`` (as loaded from results.json) side by side, then the named models of the paper.

    A result with several anomaly scores gives a column for each; closed-set figures stand in its first.
    """
    columns = [column for result in results for column in _columns(result)]
    keys = {data_set for column in columns for data_set, _ in column.figures}
    return Comparison((*columns, *(_quoted(name, keys) for name in paper)))


def threshold_lines(results: Mapping[str, Value]) -> list[str]:
    """One line for each set: what the model's own threshold flags there, and what it promises."""
    known = ((key, entry.get("at_threshold")) for key, entry in results["sets"].items())
    return [_threshold_line(key, found) for key, found in known if found is not None]


def _threshold_line(key: str, found: JSON) -> str:
    parts = [
        text.format(100 * found[name], int(found.get("normal_images", 0)))
        for name, text in {
            "flagged_known": "{:.2f} % of an image's known pixels flagged",
            "images_with_alarm": "an alarm in {:.1f} % of {} normal images",
            "recall": "{:.1f} % of the unknown pixels found",
        }.items()
        if name in found
    ]
    measured = printable(f"{key}, above {found['threshold']:.4g}: {', '.join(parts)}")
    return f"{measured} (the threshold {printable(found['promise'])})"


def paper_models() -> tuple[str, ...]:
    """Names of the models whose figures are quoted from the paper."""
    return tuple(_paper()["models"])


def _paper() -> JSON:
    return json.loads((files("gmmseg.report") / "paper_results.json").read_text(encoding="utf-8"))


def _quoted(name: str, keys: Collection[str]) -> Column:
    """The paper's figures of a model for those of the measured sets ``keys`` that it was judged on too."""
    models = _paper()["models"]
    if name not in models:
        raise ValueError(f"the paper has no figures of {name!r}; it has {', '.join(models)}")
    sets = models[name]["sets"]
    figures = {
        (key, metric): Figure(value)
        for key in keys
        for metric, value in sets.get(_papers_name(key), {}).items()
    }
    return Column(name, figures, quoted=True)


def _papers_name(key: str) -> str:
    """The paper's name of the set behind a key such as ``road_anomaly/test (window=512)``.

    A split the paper does not use keeps its own name, and so meets none of the paper's figures.
    """
    whole = key.partition(" (")[0]
    name, _, split = whole.partition("/")
    return name if split in ("", *_PAPER_SPLITS.get(name, ())) else whole


def _columns(result: Mapping[str, Value]) -> list[Column]:
    entries = result["sets"].items()
    closed = {
        (data_set, metric): Figure(100 * value, _interval(entry, metric))
        for data_set, entry in entries
        for metric, value in entry.get("metrics", {}).items()
        if metric in _METRICS
    }
    scores = dict.fromkeys(score for _, entry in entries for score in entry.get("scores", {}))
    by_score = [
        Column(f"{result['name']} ({score})" if len(scores) > 1 else result["name"], _anomaly(entries, score))
        for score in scores
    ]
    if not by_score:
        return [Column(result["name"], closed)]
    by_score[0].figures.update(closed)
    return by_score


def _anomaly(entries: Iterable[tuple[str, JSON]], score: str) -> dict[tuple[str, str], Figure]:
    figures = {}
    for data_set, entry in entries:
        values = entry.get("scores", {}).get(score, {})
        for metric, value in {**values, **values.get("components", {})}.items():
            if metric in _METRICS:
                figures[data_set, metric] = Figure(100 * value, _interval(values, metric))
    return figures


def _interval(figures: Mapping[str, Value], metric: str) -> tuple[float, float] | None:
    """The confidence interval of a metric in percent; None where none was found."""
    ends = figures.get("intervals", {}).get(metric)
    return (100 * ends[0], 100 * ends[1]) if ends else None


def _heading(column: Column) -> str:
    return f"{column.heading} ({QUOTED})" if column.quoted else column.heading


def _metric(metric: str, up: str = "↑", down: str = "↓") -> str:
    heading, higher = _METRICS[metric]
    return f"{heading} {up if higher else down}"


def _cell(column: Column, row: tuple[str, str], emphasis: str) -> str:
    figure = column.figures.get(row)
    if figure is None or math.isnan(figure.value):
        return "-"
    number = emphasis.format(f"{figure.value:.2f}")
    return (
        number
        if figure.interval is None
        else f"{number} [{figure.interval[0]:.2f}, {figure.interval[1]:.2f}]"
    )


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(printable(cell).replace("|", r"\|") for cell in cells) + " |"


def _no_formula(text: str) -> str:
    """``text`` as a cell that spreadsheets take for text, also when it begins like a formula."""
    return "'" + text if text.lstrip().startswith(("=", "+", "-", "@")) else text


def _escaped(text: str) -> str:
    """``text`` with LaTeX's special characters escaped."""
    return printable(text).translate(_LATEX)


_LATEX = str.maketrans(
    {c: "\\" + c for c in "&%#_{}$"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
