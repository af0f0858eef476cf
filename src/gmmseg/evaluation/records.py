"""A results file over several evaluations of one model: nothing that was found earlier is lost.

An entry's ``asked`` says what was judged and how (root folder, inference settings). The same question asked
again replaces its answer; anomaly scores it did not ask for are kept, with the settings they were made with,
and so are scores fitted on another set and component figures of another preset. Another question under the
same name gets a key of its own, which names the difference.
"""

from collections.abc import Mapping
from pathlib import Path

from gmmseg.evaluation.pooled import EvaluationError
from gmmseg.evaluation.results import load_results, write_results
from gmmseg.json_tree import JSON

_COUNTS = ("task", "images", "pixels", "ignored_pixels")
_CIRCUMSTANCES = ("seeds", "settings", "versions")


def refuse_other_model(path: Path, name: str, weights: str | None) -> None:
    """An error if the results file at ``path`` is about another model; none if there is no such file.

    Files written before weights were recorded are told apart by the model's name.
    """
    if not path.is_file():
        return
    old = load_results(path)
    recorded = old.get("weights")
    same = old["name"] == name if recorded is None or weights is None else recorded == weights
    if not same:
        what = "other weights" if old["name"] == name else f"{old['name']!r}, not of {name!r}"
        raise EvaluationError(
            f"{path}: holds results of {what}; write to another file with --out, or remove it"
        )


def record_results(results: JSON, path: Path) -> JSON:
    """Write ``results`` to ``path``, together with what the file holds already; returns what was written."""
    refuse_other_model(path, results["name"], results.get("weights"))
    merged = merge_results(load_results(path), results) if path.is_file() else dict(results)
    write_results(merged, path)
    return merged


def merge_results(old: JSON, new: JSON) -> JSON:
    """``new`` and the entries of ``old``, which keep the seeds, settings and versions they were made with."""
    sets = {key: _with_circumstances(entry, old, new) for key, entry in old["sets"].items()}
    for key, entry in new["sets"].items():
        place = _place(sets, key, entry)
        sets[place] = _renewed(sets[place], entry) if place in sets else dict(entry)
    return {**new, "sets": sets}


def _with_circumstances(entry: JSON, old: JSON, new: JSON) -> JSON:
    differing = {part: old[part] for part in _CIRCUMSTANCES if part in old and old[part] != new.get(part)}
    return {**differing, **entry}


def _place(sets: Mapping[str, JSON], key: str, entry: JSON) -> str:
    """Where in ``sets`` the entry belongs: at its own earlier answer, or at a key nobody has."""
    name = set_name(key)
    namesakes = [place for place in sets if set_name(place) == name]
    answered = [place for place in namesakes if _same_question(sets[place], entry)]
    if answered or not namesakes:
        return answered[0] if answered else name
    earlier, asked = sets[namesakes[0]].get("asked", {}), entry.get("asked", {})
    different = [f"{part}={value}" for part, value in asked.items() if earlier.get(part) != value]
    named = f"{name} ({', '.join(different)})" if different else f"{name} ({len(namesakes) + 1})"
    return named if named not in sets else f"{named} ({len(namesakes) + 1})"


def set_name(key: str) -> str:
    """The name and split in an entry's key, without what tells it from its namesakes."""
    return key.partition(" (")[0]


def _same_question(old: JSON, new: JSON) -> bool:
    """Whether both judge the same pixels in the same way; old files do not say how, only how many."""
    counts = all(old.get(name) == new.get(name) for name in _COUNTS)
    return counts and old.get("asked", new.get("asked")) == new.get("asked")


def _renewed(old: JSON, new: JSON) -> JSON:
    """The new answer, with the scores, components and intervals that only the old one has."""
    if "scores" not in new:
        return dict(new)
    made_with = {part: old[part] for part in _CIRCUMSTANCES if part in old}
    scores = {name: {**made_with, **score} for name, score in old["scores"].items()}
    for name, score in new["scores"].items():
        before = old["scores"].get(name, {})
        if before.get("fitted_on") not in (None, score.get("fitted_on")):
            scores[f"{name} (fitted on {before['fitted_on']})"] = scores[name]
            before = {}
        scores[name] = {**_other_components(before, score), **before, **score}
    return {**new, "scores": scores}


def _other_components(before: JSON, after: JSON) -> JSON:
    """Component figures of another preset than the new ones, under a key that names it."""
    old, new = (each.get("components", {}).get("preset") for each in (before, after))
    return {} if None in (old, new) or old == new else {f"components ({old})": before["components"]}
