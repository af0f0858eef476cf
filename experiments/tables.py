"""What the tables of the experiments hold: Markdown rows, mean and standard deviation over seeds."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

MEASURES = ("auroc", "ap", "fpr95")


def figures(results: dict[str, Any]) -> dict[str, Any]:
    """Of what `run.evaluate` returns, a labelled set first: its mIoU, and the measures of each score on the
    anomaly sets."""
    known, *unknown = results["sets"].values()
    return {
        "miou": known["metrics"]["miou"],
        "scores": {
            name: {key: score[key] for key in MEASURES}
            for each in unknown
            for name, score in each["scores"].items()
        },
    }


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and where there are several the standard deviation; nothing for no value."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def percent(shares: Iterable[float]) -> str:
    """`spread` of shares, in percent."""
    return spread([100 * share for share in shares])


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A Markdown table."""
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
