"""What the tables of the experiments hold: Markdown rows, mean and standard deviation over seeds."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gmmseg.atomic import write_bytes

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


def measured(found: Sequence[dict[str, Any]], score: str) -> list[str]:
    """The cells of a score's measures, of what `figures` gave with several seeds."""
    return [percent(each["scores"][score][key] for each in found) for key in MEASURES]


def write_found(target: Path, found: object) -> None:
    """Leave what a run found as JSON."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, (json.dumps(found, indent=1) + "\n").encode())


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A Markdown table."""
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
