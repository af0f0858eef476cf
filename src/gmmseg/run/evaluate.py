"""Evaluation: a model and data sets in, the contents of results.json out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gmmseg.evaluation import build_results, scores
from gmmseg.evaluation.evaluator import (
    evaluate_anomaly,
    evaluate_closed_set,
    fit_scores,
)
from gmmseg.inference import Predictor
from gmmseg.models import Segmenter
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.saving import digest
from gmmseg.samples import Progress

AS_VALIDATED = InferenceSettings()
"""Nothing is overridden: the model looks at images as it did in its validation."""
SOFTMAX_SCORES = ("msp", "entropy", "max_logit", "energy")
GMM_SCORES = ("nll", "msp", "entropy")


def evaluate(
    model: Segmenter,
    name: str,
    sets: Sequence[Any],
    *,
    score_names: Sequence[str] = (),
    training_set: Any = None,
    steps: Sequence[Any] = (),
    components: str | None = None,
    inference: InferenceSettings = AS_VALIDATED,
    seeds: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The results of a model on labelled and anomaly sets, one pass each; for `write_results`.

    ``inference`` overrides how the model looks at images where it says something, as in `Predictor`.
    """
    predictor = Predictor(model, **vars(inference))
    keyed, chosen = _keyed(sets), make_scores(model, score_names)
    fitted_on = _fit_needed(chosen, predictor, training_set, progress)
    entries: dict[str, Any] = {}
    for key, dataset in keyed.items():
        if dataset.label_space is not None:
            entry = evaluate_closed_set(predictor, dataset, progress=progress)
        else:
            entry = evaluate_anomaly(
                predictor,
                dataset,
                chosen,
                steps=steps,
                components=components,
                progress=progress,
            )
            _say_how(entry, chosen, components, fitted_on)
        entries[key] = {**entry, "asked": _asked(dataset, predictor.inference)}
    settings = {
        "inference": vars(predictor.inference),
        "score_names": [score.name for score in chosen],
        "temperature": model.temperature,
    }
    return build_results(name, entries, seeds=seeds, settings=settings, weights=digest(model))


def _fit_needed(
    chosen: Sequence[Any], predictor: Predictor, training_set: Any, progress: Progress | None
) -> str | None:
    """Fit those scores that need statistics of the training set; returns the set they were fitted on."""
    needing = [score.name for score in chosen if isinstance(score, scores.FittedScore)]
    if not needing:
        return None
    if training_set is None:
        raise ValueError(
            f"{', '.join(needing)}: these scores need statistics of the training set; "
            "name it with --train-data"
        )
    fit_scores(chosen, predictor, training_set, progress=progress)
    root = getattr(training_set, "root", None)
    return f"{training_set.name}/{training_set.split}" + (f" in {Path(root).resolve()}" if root else "")


def _keyed(sets: Sequence[Any]) -> dict[str, Any]:
    """The sets by name and split, and by their root too where that does not tell them apart."""
    keyed: dict[str, Any] = {}
    for dataset in sets:
        key = f"{dataset.name}/{dataset.split}"
        key = f"{key} (root={getattr(dataset, 'root', None)})" if key in keyed else key
        if key in keyed or any(_same_files(dataset, other) for other in keyed.values()):
            raise ValueError(f"{dataset.name}/{dataset.split}: given twice; give each set once")
        keyed[key] = dataset
    return keyed


def _same_files(one: Any, other: Any) -> bool:
    sources = [(each.name, each.split, getattr(each, "root", None)) for each in (one, other)]
    return sources[0] == sources[1]


def _say_how(
    entry: dict[str, Any], chosen: Sequence[Any], components: str | None, fitted_on: str | None
) -> None:
    """Note with each score what it was fitted on, and which preset its component figures follow."""
    fitted = {score.name for score in chosen if isinstance(score, scores.FittedScore)}
    for name, score in entry["scores"].items():
        if name.partition("+")[0] in fitted:
            score["fitted_on"] = fitted_on
        if "components" in score:
            score["components"]["preset"] = components


def _asked(dataset: Any, inference: InferenceSettings) -> dict[str, Any]:
    """What tells this judgement of a set from others: where it lies and how its images are looked at."""
    root = getattr(dataset, "root", None)
    return {"root": None if root is None else str(Path(root).resolve()), **vars(inference)}


def make_scores(model: Segmenter, names: Sequence[str] = ()) -> list[Any]:
    """Score objects by name; without names, those that suit the model's head."""
    names = names or _suitable_scores(model)
    known: dict[str, Callable[[], Any]] = {kind.name: kind for kind in scores.ALL}
    known[scores.Typicality.name] = lambda: scores.Typicality(model.typical)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown scores {', '.join(unknown)}: choose among {', '.join(known)}")
    return [known[name]() for name in names]


def _suitable_scores(model: Segmenter) -> tuple[str, ...]:
    if model.mixture is None:
        return SOFTMAX_SCORES
    typical = () if model.typical is None else ("typicality",)
    if not model.points_are_cells:
        return (*GMM_SCORES, *typical)  # densities of components are no map of pixels
    # The evidence as the model defines it, and the other way to sum up the components.
    other = "nll_logsumexp" if model.mixture.winner else "nll_winner"
    return (GMM_SCORES[0], other, *typical, *GMM_SCORES[1:])
