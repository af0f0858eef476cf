"""The images a model does worst on, and those it finds strangest."""

from collections.abc import Sequence

from gmmseg.json_tree import JSON
from gmmseg.report.parts import Column, Section, Table
from gmmseg.report.subjects import Subject, entries

_FIGURES = {
    "wrong": Column("wrong pixels %", "", 1, True),
    "miou": Column("mIoU of the image %"),
    "missed": Column("missed of the unknown %"),
    "flagged_known": Column("flagged of the known %"),
}
_STRANGE = Column("strangeness", digits=2)
_ORDERS = {
    "worst": "the images with most wrong pixels",
    "strangest": "the strangest images, by the score that 1 % of their pixels exceed",
}


def images_section(subjects: Sequence[Subject]) -> Section | None:
    """The worst and the strangest images of each set, for the first subject that knows them; None: nobody."""
    for subject in subjects:
        found = [each for task in ("closed_set", "anomaly") for each in entries([subject], task)]
        tables = [table for _, key, entry in found for table in _tables(key, entry)]
        if tables:
            text = (
                f"Of `{subject.name}`. In sets with known classes a pixel is wrong if it is given another "
                "class, in anomaly sets if it is unknown and missed, or known and flagged, at the model's "
                "threshold."
            )
            return Section("Images that stand out", text, tuple(tables))
    return None


def _tables(key: str, entry: JSON) -> list[Table]:
    ranked = entry.get("images_ranked", {})
    return [_table(f"{key}: {words}", ranked[name]) for name, words in _ORDERS.items() if ranked.get(name)]


def _table(caption: str, images: Sequence[JSON]) -> Table:
    known = [name for name in _FIGURES if name in images[0]]
    rows = tuple(
        (
            each["image"],
            *(100 * each.get(name, float("nan")) for name in known),
            each.get("strangeness", float("nan")),
        )
        for each in images
    )
    return Table((Column("image"), *(_FIGURES[name] for name in known), _STRANGE), rows, caption)


def standouts(entry: JSON, count: int) -> dict[int, tuple[str, str]]:
    """By place in the set, name and reason of ``count`` of the worst and as many of the strangest images."""
    reasons = {"worst": "most wrong pixels", "strangest": "the strangest"}
    chosen: dict[int, tuple[str, str]] = {}
    for order, reason in reasons.items():
        fresh = [each for each in entry["images_ranked"].get(order, []) if each["index"] not in chosen]
        chosen |= {each["index"]: (each["image"], reason) for each in fresh[:count]}
    return chosen
