"""What training and evaluation have stored, as the charts take it: logs, and histograms from curves."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gmmseg.json_tree import JSON, Value

_RATES = {"known": "fpr", "unknown": "tpr"}


def read_log(path: Path) -> list[JSON]:
    """The records of a log, oldest first; lines cut off by an interruption are left out.

    Such a line is the last one, or anywhere once the run was continued. A record has a ``step``.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = [_record(line) for line in lines]
    return [record for record in records if record is not None]


def _record(line: str) -> JSON | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def histogram_from_curve(curve: Mapping[str, Value], bins: int = 60) -> dict[str, np.ndarray] | None:
    """What `plots.score_histogram` takes, from {"thresholds", "fpr", "tpr"} over falling thresholds.

    At a threshold the false positive rate is the share of known pixels at or above it, and the true positive
    rate that of unknown ones. ``edges`` (bins + 1) span all but the outermost 0.2 % of either;
    ``known`` and ``unknown`` (bins) are shares. None for a curve without two different finite thresholds.
    """
    thresholds = np.asarray(curve["thresholds"], dtype=float)
    finite = np.isfinite(thresholds)
    rising = thresholds[finite][::-1]
    above = {kind: np.asarray(curve[rate], dtype=float)[finite][::-1] for kind, rate in _RATES.items()}
    if len(rising) < 2 or rising[0] == rising[-1]:
        return None
    inner = np.concatenate([rising[(share > 0.002) & (share < 0.998)] for share in above.values()])
    span = inner if len(inner) > 1 and np.ptp(inner) > 0 else rising
    edges = np.linspace(span.min(), span.max(), bins + 1)
    shares = {kind: -np.diff(np.interp(edges, rising, share, right=0.0)) for kind, share in above.items()}
    return {"edges": edges, **shares}
