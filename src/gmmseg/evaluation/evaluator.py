"""A model and a data set in, an entry of results.json out: one pass over the images, constant memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.evaluation.calibration import CalibrationError
from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.pooled import EvaluationError
from gmmseg.evaluation.results import anomaly_entry, closed_set_entry
from gmmseg.evaluation.scores import FittedScore, fit_together
from gmmseg.inference import Maps, Predictor
from gmmseg.inference.windows import anomaly_map
from gmmseg.samples import Progress

PostProcess = Callable[[Tensor, Tensor], Tensor]


class Sample(Protocol):
    """image (3 h w) uint8, labels (h w) uint8, name."""

    @property
    def image(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def name(self) -> str: ...


class Score(Protocol):
    """An anomaly score: a name, and a call that gives (b h w), higher = stranger."""

    name: str

    def __call__(self, output: Any) -> Tensor: ...


def image_maps(predictor: Predictor, sample: Sample, scores: Sequence[Score] = ()) -> Maps:
    """One image through the network once: logits and ``scores`` (1 s h w) at label resolution."""
    height, width = sample.labels.shape
    return predictor.maps(sample.image.float()[None] / 255, (height, width), scores or (anomaly_map,))


def image_scores(predictor: Predictor, sample: Sample, scores: Sequence[Score]) -> Tensor:
    """The scores (s h w) of one image at label resolution, on the CPU."""
    height, width = sample.labels.shape
    return predictor.scores(sample.image.float()[None] / 255, (height, width), scores)[0].cpu()


def check_classes(dataset: Any, num_classes: int) -> None:
    """Refuse a set that is not labelled with as many classes as the model has."""
    if dataset.label_space is None:
        raise EvaluationError(
            f"{dataset.name} marks what is unknown, not classes: give labelled images of the model's classes"
        )
    if len(dataset.label_space) != num_classes:
        raise EvaluationError(
            f"{dataset.name} has {len(dataset.label_space)} classes, the model {num_classes}: "
            "a model can only be judged on the classes it was trained for"
        )


@torch.no_grad()
def evaluate_closed_set(
    predictor: Predictor,
    dataset: Any,
    *,
    progress: Progress | None = None,
    classwise: bool = True,
) -> dict[str, Any]:
    """mIoU, accuracies and calibration of a labelled set; an entry for `build_results`.

    With a temperature chosen after training, the calibration error without it is reported too.
    """
    num_classes = predictor.segmenter.num_classes
    check_classes(dataset, num_classes)
    confusion = ConfusionMatrix(num_classes).to(predictor.device)
    calibration = CalibrationError(num_classes=num_classes if classwise else None).to(predictor.device)
    temperature = predictor.segmenter.temperature
    as_trained = CalibrationError().to(predictor.device) if temperature != 1 else None
    for sample in shard(dataset, progress):
        maps = image_maps(predictor, sample)
        labels = sample.labels[None].long().to(maps.logits.device)
        confusion.update(maps.logits.argmax(1), labels, source=sample.name)
        calibration.update(maps.posterior, labels, source=sample.name)
        if as_trained is not None:
            as_trained.update((temperature * maps.logits).softmax(1), labels, source=sample.name)
    return closed_set_entry(confusion, calibration, tuple(dataset.label_space.names), as_trained)


@torch.no_grad()
def evaluate_anomaly(
    predictor: Predictor,
    dataset: Any,
    scores: Sequence[Score],
    *,
    steps: Sequence[PostProcess] = (),
    components: str | None = None,
    intervals: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """AUROC, AP and FPR95 of each score on an anomaly set; an entry for `build_results`.

    ``steps`` are post-processings applied one after the other; each score is then reported with and without
    them. ``components`` (anomaly or obstacle) adds component metrics, in a second pass.
    """
    names = [score.name for score in scores]
    names += [f"{name}+{'+'.join(type(step).__name__ for step in steps)}" for name in names if steps]
    found = {name: AnomalyCurve(per_image=intervals) for name in names}
    with _Counting(found) as counting:
        for sample in shard(dataset, progress):
            maps = (
                _with_and_without(image_maps(predictor, sample, scores), steps)
                if steps
                else image_scores(predictor, sample, scores)
            )
            counting.start(dict(zip(names, maps)), sample)
    parts = _components(predictor, dataset, scores, found, components, progress) if components else {}
    return anomaly_entry(found, parts)


def _with_and_without(maps: Maps, steps: Sequence[PostProcess]) -> Tensor:
    """(2s h w) the scores of one image as they are, and then the same after ``steps``, on the CPU."""
    scores = maps.scores[0]
    predicted = maps.logits.argmax(1).expand(len(scores), -1, -1)
    processed = scores
    for step in steps:
        processed = step(processed, predicted)
    return torch.cat([scores, processed]).cpu()


class _Counting:
    """Metrics by name, each updated in a thread of its own while the next image is in the network."""

    def __init__(self, metrics: Mapping[str, AnomalyCurve | ComponentMetrics]) -> None:
        self.metrics = metrics
        self.threads = ThreadPoolExecutor(max_workers=max(1, len(metrics)))
        self.running: list[Future[None]] = []

    def __enter__(self) -> "_Counting":
        return self

    def start(self, scores: Mapping[str, Tensor], sample: Sample) -> None:
        """Begin to take in the scores (h w) of a sample, once the one before it is done."""
        self._finish()
        self.running = [
            self.threads.submit(self.metrics[name].update, each, sample.labels, sample.name)
            for name, each in scores.items()
        ]

    def _finish(self) -> None:
        for update in self.running:
            update.result()
        self.running = []

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self.threads.shutdown()


def _components(
    predictor: Predictor,
    dataset: Any,
    scores: Sequence[Score],
    found: dict[str, AnomalyCurve],
    preset: str,
    progress: Progress | None,
) -> dict[str, ComponentMetrics]:
    """The second pass: component metrics at each score's best pixel F1."""
    parts = {
        score.name: ComponentMetrics(preset, threshold=found[score.name].threshold_at_best_f1())
        for score in scores
    }
    with _Counting(parts) as counting:
        for sample in shard(dataset, progress):
            counting.start(dict(zip(parts, image_scores(predictor, sample, scores))), sample)
    return parts


def shard(dataset: Any, progress: Progress | None) -> Iterator[Sample]:
    """This process's share of the samples; the metrics merge what the processes found."""
    if len(dataset) == 0:
        raise EvaluationError(f"{dataset.name}: there is nothing to evaluate on")
    for index in distributed.shard(len(dataset)):
        sample = dataset[index]
        yield sample
        if progress:
            progress(index + 1, len(dataset), sample.name)


def fit_scores(
    scores: Sequence[Any],
    predictor: Predictor,
    dataset: Any,
    *,
    progress: Progress | None = None,
) -> None:
    """Fit those scores that need statistics on a labelled set (the training set), all in one pass over it."""
    needing = [score for score in scores if isinstance(score, FittedScore)]
    if needing:
        fit_together(needing, _outputs(predictor, dataset, progress))


_WINDOWS = 1 << 10  # more than any training image has: numbers that no other window has


def _outputs(
    predictor: Predictor, dataset: Any, progress: Progress | None
) -> Iterator[tuple[int, Any, Tensor]]:
    """A number of its own, the output and the labels of every window of this process's images."""
    for sample, index in zip(shard(dataset, progress), distributed.shard(len(dataset))):
        seen = predictor.outputs(sample.image.float()[None] / 255, sample.labels[None].long())
        for window, (output, labels) in enumerate(seen):
            yield index * _WINDOWS + window, output, labels
