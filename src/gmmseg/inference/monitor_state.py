"""The state of a monitor as plain values, and its file: so that watching can go on tomorrow."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gmmseg.atomic import write_bytes
from gmmseg.bounds import Count, CountOrNone, Rate, Seed, Text, check_bounds, shown
from gmmseg.json_tree import JSON

STATE_FORMAT = 1
_ANEW = "name another file, or remove it to start anew"


@dataclass(frozen=True)
class Alarm:
    """The first image at which the wealth of a statistic (``kind``) reached its limit."""

    kind: Text
    index: CountOrNone
    name: str
    wealth: float

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class StrangeImage:
    """An image and its value of a statistic; ``distance``: how far from the middle of the calibration
    images."""

    index: CountOrNone
    name: str
    value: float
    distance: float

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class WatchState:
    """Of one statistic: logs of the amounts on bets, how many values are in which bin, strangest images."""

    log_amounts: tuple[float, ...]
    bins: tuple[CountOrNone, ...]
    counts: tuple[Count, ...]
    strangest: tuple[StrangeImage, ...]

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.bins) != len(self.counts):
            raise ValueError(f"{len(self.bins)} bins and {len(self.counts)} counts do not belong together")


@dataclass(frozen=True)
class MonitorState:
    """All that a monitor needs to go on; ``reference``: a digest of the calibration it compares with."""

    reference: Text
    false_alarms: Rate
    seed: Seed
    images: CountOrNone
    alarms: tuple[Alarm, ...]
    watches: dict[str, WatchState]

    def __post_init__(self) -> None:
        check_bounds(self)


def write_state(state: MonitorState, path: Path) -> None:
    """Write a state, whole or not at all."""
    about = {"library": "gmmseg", "kind": "monitor", "format": STATE_FORMAT}
    write_bytes(path, (json.dumps({**about, **asdict(state)}, allow_nan=False) + "\n").encode())


def read_state(path: Path) -> MonitorState | None:
    """The state in a file; None where there is none yet."""
    if not path.exists():
        return None
    try:
        return _from_tree(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); {_ANEW}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}; {_ANEW}") from error


def _from_tree(tree: object) -> MonitorState:
    if not isinstance(tree, dict) or (tree.get("library"), tree.get("kind")) != ("gmmseg", "monitor"):
        raise ValueError("not the state of a gmmseg monitor")
    if tree.get("format") != STATE_FORMAT:
        raise ValueError(f"format {shown(tree.get('format'))}, this version of gmmseg reads {STATE_FORMAT}")
    values = _entries({key: tree[key] for key in tree.keys() - {"library", "kind", "format"}}, MonitorState)
    alarms = tuple(Alarm(**_entries(each, Alarm)) for each in _list(values, "alarms"))
    if not isinstance(values["watches"], dict):
        raise ValueError("watches must be an object")
    watches = {kind: _watch(each) for kind, each in values["watches"].items()}
    return MonitorState(**{**values, "alarms": alarms, "watches": watches})


def _watch(tree: object) -> WatchState:
    values = _entries(tree, WatchState)
    images = tuple(StrangeImage(**_entries(each, StrangeImage)) for each in _list(values, "strangest"))
    return WatchState(**{**values, "strangest": images})


def _list(values: JSON, key: str) -> list[object]:
    if not isinstance(values[key], list):
        raise ValueError(f"{key} must be a list, got {shown(values[key])}")
    return values[key]


def _entries(tree: object, kind: type) -> JSON:
    """The entries of a JSON object, which must be the fields of ``kind``."""
    names = {each.name for each in fields(kind)}
    if not isinstance(tree, dict) or tree.keys() != names:
        raise ValueError(f"{shown(tree)} does not hold {', '.join(sorted(names))}")
    return dict(tree)
