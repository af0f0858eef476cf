"""Evaluation: a model and data sets in, the contents of results.json out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gmmseg.evaluation import build_results, scores
from gmmseg.evaluation.evaluator import (
    PostProcess,
    Score,
    evaluate_anomaly,
    evaluate_closed_set,
    fit_scores,
)
from gmmseg.inference import Predictor
from gmmseg.inference.readings import score_named
from gmmseg.json_tree import JSON
from gmmseg.models import Segmenter
from gmmseg.models.calibration_file import ScoreMoments
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.saving import digest
from gmmseg.samples import Progress, SegmentationDataset

AS_VALIDATED = InferenceSettings()
"""Nothing is overridden: the model looks at images as it did in its validation."""
SOFTMAX_SCORES = ("msp", "entropy", "max_logit", "energy")
GMM_SCORES = ("nll", "msp", "entropy")


@dataclass(frozen=True)
class Judging:
    """How a model is judged, on whatever sets."""

    score_names: Sequence[str] = ()
    """Anomaly scores; none: those that suit the model's head."""
    steps: Sequence[PostProcess] = ()
    """Post-processings of the scores, one after the other; scores are reported with and without them."""
    components: str | None = None
    """Preset of the component metrics, anomaly or obstacle; None: without them."""
    inference: InferenceSettings = AS_VALIDATED
    """Overrides how the model looks at images where it says something, as in `Predictor`."""


AS_USUAL = Judging()


def evaluate(
    model: Segmenter,
    name: str,
    sets: Sequence[SegmentationDataset],
    judging: Judging = AS_USUAL,
    *,
    training_set: SegmentationDataset | None = None,
    seeds: dict[str, int] | None = None,
    progress: Progress | None = None,
) -> JSON:
    """The results of a model on labelled and anomaly sets, one pass each; for `write_results`.

    Scores that need statistics of the training set are all fitted in one pass over ``training_set``.
    """
    predictor = Predictor(model, **vars(judging.inference))
    keyed, chosen = _keyed(sets), make_scores(model, judging.score_names)
    fitted_on = _fit_needed(chosen, predictor, training_set, progress)
    entries: JSON = {}
    for key, dataset in keyed.items():
        if dataset.label_space is not None:
            entry = evaluate_closed_set(predictor, dataset, progress=progress)
        else:
            entry = evaluate_anomaly(
                predictor,
                dataset,
                chosen,
                steps=judging.steps,
                components=judging.components,
                progress=progress,
            )
            _say_how(entry, chosen, judging.components, fitted_on)
        entries[key] = {**entry, "asked": _asked(dataset, predictor.inference)}
    settings = {
        "inference": vars(predictor.inference),
        "score_names": [score.name for score in chosen],
        "temperature": model.temperature,
        "calibrated": None if model.calibration is None else model.calibration.time,
    }
    return build_results(name, entries, seeds=seeds, settings=settings, weights=digest(model))


def _fit_needed(
    chosen: Sequence[Score],
    predictor: Predictor,
    training_set: SegmentationDataset | None,
    progress: Progress | None,
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
    place = f" in {training_set.root.resolve()}" if training_set.root else ""
    return f"{training_set.name}/{training_set.split}{place}"


def _keyed(sets: Sequence[SegmentationDataset]) -> dict[str, SegmentationDataset]:
    """The sets by name and split, and by their root too where that does not tell them apart."""
    keyed: dict[str, SegmentationDataset] = {}
    for dataset in sets:
        key = f"{dataset.name}/{dataset.split}"
        key = f"{key} (root={dataset.root})" if key in keyed else key
        if key in keyed or any(_same_files(dataset, other) for other in keyed.values()):
            raise ValueError(f"{dataset.name}/{dataset.split}: given twice; give each set once")
        keyed[key] = dataset
    return keyed


def _same_files(one: SegmentationDataset, other: SegmentationDataset) -> bool:
    return (one.name, one.split, one.root) == (other.name, other.split, other.root)


def _say_how(entry: JSON, chosen: Sequence[Score], components: str | None, fitted_on: str | None) -> None:
    """Note with each score what it was fitted on, and which preset its component figures follow."""
    fitted = {score.name for score in chosen if isinstance(score, scores.FittedScore)}
    for name, score in entry["scores"].items():
        if name.partition("+")[0] in fitted:
            score["fitted_on"] = fitted_on
        if "components" in score:
            score["components"]["preset"] = components


def _asked(dataset: SegmentationDataset, inference: InferenceSettings) -> JSON:
    """What tells this judgement of a set from others: where it lies and how its images are looked at."""
    root = dataset.root
    return {"root": None if root is None else str(root.resolve()), **vars(inference)}


def make_scores(model: Segmenter, names: Sequence[str] = ()) -> list[Score]:
    """Score objects by name; without names, those that suit the model's head."""
    names = names or _suitable_scores(model)
    fitted: dict[str, Callable[[], Score]] = {kind.name: kind for kind in scores.FITTED}
    return [
        fitted[name]() if name in fitted else score_named(name, model.calibration, list(fitted))
        for name in names
    ]


def _suitable_scores(model: Segmenter) -> tuple[str, ...]:
    fused = ("fused",) if _moments(model) else ()
    return (*_suitable_to_head(model), *(() if model.density is None else ("density", *fused)))


def _suitable_to_head(model: Segmenter) -> tuple[str, ...]:
    if model.mixture is None:
        return SOFTMAX_SCORES
    typical = () if _typical(model) is None else ("typicality",)
    if not model.points_are_cells:
        return (*GMM_SCORES, *typical)  # densities of components are no map of pixels
    # The evidence as the model defines it, and the other way to sum up the components.
    other = "nll_logsumexp" if model.mixture.winner else "nll_winner"
    return (GMM_SCORES[0], other, *typical, *GMM_SCORES[1:])


def _typical(model: Segmenter) -> tuple[float, ...] | None:
    return None if model.calibration is None else model.calibration.typical


def _moments(model: Segmenter) -> Mapping[str, ScoreMoments]:
    return {} if model.calibration is None else model.calibration.moments
