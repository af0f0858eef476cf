"""Training logs: one JSON object per line."""

import json
from pathlib import Path
from typing import Any


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, oldest first; lines cut off by an interruption are left out.

    Such a line is the last one, or anywhere once the run was continued. A record has a ``step``.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = [_record(line) for line in lines]
    return [record for record in records if record is not None]


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
