"""What a report is about: models, with what their files say of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gmmseg.json_tree import JSON


@dataclass(frozen=True, eq=False)
class Subject:
    """A model the report is about: its ``results`` as loaded from results.json (None where it has none), the
    records of its training ``log``, and its ``config`` as text."""

    name: str
    results: JSON | None
    log: list[JSON]
    config: str


def entries(subjects: Iterable[Subject], task: str) -> Iterable[tuple[Subject, str, JSON]]:
    """(subject, set, entry) of all results of a task: closed_set or anomaly."""
    for subject in subjects:
        for key, entry in (subject.results or {"sets": {}})["sets"].items():
            if entry["task"] == task:
                yield subject, key, entry


def first_set(subjects: Sequence[Subject], task: str) -> tuple[str, dict[Subject, JSON]]:
    """The first set of this kind that the first subject with any was judged on, and everybody's entries."""
    found = list(entries(subjects, task))
    name = found[0][1] if found else ""
    return name, {subject: entry for subject, key, entry in found if key == name}
