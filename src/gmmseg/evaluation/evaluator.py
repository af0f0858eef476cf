"""A model and a data set in, an entry of results.json out: one pass over the images, constant memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from gmmseg import distributed
from gmmseg.evaluation.alarms import AlarmRates
from gmmseg.evaluation.calibration import CalibrationError
from gmmseg.evaluation.components import ComponentMetrics
from gmmseg.evaluation.confusion import ConfusionMatrix
from gmmseg.evaluation.detection import AnomalyCurve
from gmmseg.evaluation.per_image import KnownImages, StrangeImages
from gmmseg.evaluation.results import anomaly_entry, closed_set_entry
from gmmseg.evaluation.scores import FittedScore, Output, fit_together
from gmmseg.inference import Predictor
from gmmseg.inference.readings import Score
from gmmseg.inference.windows import Reading
from gmmseg.json_tree import JSON
from gmmseg.samples import Progress, Sample, SegmentationDataset, check_classes, walk

PostProcess = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def evaluate_closed_set(
    predictor: Predictor,
    dataset: SegmentationDataset,
    *,
    progress: Progress | None = None,
    classwise: bool = True,
    per_image: bool = True,
) -> JSON:
    """mIoU, accuracies and calibration of a labelled set; an entry for `build_results`.

    With a temperature chosen after training, the calibration error without it is reported too, and with a
    threshold what it flags. ``per_image``: with intervals, and the worst and the strangest images.
    """
    num_classes = predictor.segmenter.num_classes
    classes = check_classes(dataset, num_classes)
    confusion = ConfusionMatrix(num_classes).to(predictor.device)
    calibration = CalibrationError(num_classes=num_classes if classwise else None).to(predictor.device)
    temperature = predictor.segmenter.temperature
    as_trained = CalibrationError().to(predictor.device) if temperature != 1 else None
    alarms = _alarm_rates(predictor)
    images = KnownImages(num_classes) if per_image else None
    for sample, index in _numbered(dataset, progress):
        maps = predictor.maps(sample)
        labels = sample.labels[None].long().to(maps.logits.device)
        predicted = maps.labels
        confusion.update(predicted, labels, source=sample.name)
        calibration.update(maps.posterior, labels, source=sample.name)
        if as_trained is not None:
            as_trained.update((temperature * maps.logits).softmax(1), labels, source=sample.name)
        if alarms is not None:
            alarms.update(alarms.flagged(maps.anomaly[0], sample.labels), sample.labels, anomaly_set=False)
        if images is not None:
            images.update(index, sample.name, predicted[0], labels[0], maps.anomaly[0])
    if images is not None:
        images.table.merge_processes()
    entry = closed_set_entry(confusion, calibration, classes.names, as_trained, images)
    return {**entry, **_at_threshold(predictor, alarms)}


def _numbered(dataset: SegmentationDataset, progress: Progress | None) -> Iterator[tuple[Sample, int]]:
    """This process's samples, each with its place in the set."""
    return zip(walk(dataset, progress), distributed.shard(len(dataset)))


def _alarm_rates(predictor: Predictor) -> AlarmRates | None:
    """Rates at the model's own threshold, still empty; None where its score has no threshold."""
    calibration = predictor.calibration
    if calibration is None or calibration.threshold is None:
        return None
    return AlarmRates(calibration.threshold, calibration.min_area)


def _at_threshold(predictor: Predictor, alarms: AlarmRates | None) -> JSON:
    """The part of an entry that says what the threshold flags and what it promises."""
    calibration = predictor.calibration
    if alarms is None or calibration is None:
        return {}
    about = {"promise": calibration.promise_text(), "score": predictor.score}
    return {"at_threshold": {**about, **alarms.compute()}}


@torch.no_grad()
def evaluate_anomaly(
    predictor: Predictor,
    dataset: SegmentationDataset,
    scores: Sequence[Score],
    *,
    steps: Sequence[PostProcess] = (),
    components: str | None = None,
    intervals: bool = True,
    progress: Progress | None = None,
) -> JSON:
    """AUROC, AP and FPR95 of each score on an anomaly set; an entry for `build_results`.

    ``steps`` are post-processings applied one after the other; each score is then reported with and without
    them. ``components`` (anomaly or obstacle) adds component metrics, in a second pass. With a threshold,
    what it flags of the model's own anomaly map is reported too.
    """
    names = [score.name for score in scores]
    names += [f"{name}+{'+'.join(type(step).__name__ for step in steps)}" for name in names if steps]
    found = {name: AnomalyCurve(per_image=intervals) for name in names}
    alarms = _alarm_rates(predictor)
    images = StrangeImages()
    readings: list[Reading] = [*scores]
    if alarms is not None:
        readings.append(predictor.anomaly_reading)
    with _Counting(found) as counting:
        for sample, index in _numbered(dataset, progress):
            maps = _scored(predictor, sample, readings, len(scores), steps)
            if alarms is not None:
                flagged = alarms.flagged(maps[-1], sample.labels)
                alarms.update(flagged, sample.labels, anomaly_set=True)
                images.update(index, sample.name, maps[-1], sample.labels, flagged)
            counting.start(dict(zip(names, maps)), sample)
    parts = _components(predictor, dataset, scores, found, components, progress) if components else {}
    ranked = {} if alarms is None else _ranked(images)
    return {**anomaly_entry(found, parts), **_at_threshold(predictor, alarms), **ranked}


def _ranked(images: StrangeImages) -> JSON:
    """The part of an entry that names the worst and the strangest images of all processes."""
    images.table.merge_processes()
    return {"images_ranked": images.ranked()}


def _scored(
    predictor: Predictor,
    sample: Sample,
    readings: Sequence[Reading],
    judged: int,
    steps: Sequence[PostProcess],
) -> Tensor:
    """(s h w) on the CPU: the ``judged`` first readings of a sample, the same after ``steps`` if there are
    any, and then the other readings."""
    if not steps:
        return predictor.scores(sample, readings)[0].cpu()
    maps = predictor.maps(sample, readings)
    scores = maps.scores[0, :judged]
    predicted = maps.labels.expand(judged, -1, -1)
    processed = scores
    for step in steps:
        processed = step(processed, predicted)
    return torch.cat([scores, processed, maps.scores[0, judged:]]).cpu()


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
    dataset: SegmentationDataset,
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
        for sample in walk(dataset, progress):
            maps = predictor.scores(sample, scores)[0].cpu()
            counting.start(dict(zip(parts, maps)), sample)
    return parts


def fit_scores(
    scores: Sequence[Score],
    predictor: Predictor,
    dataset: SegmentationDataset,
    *,
    progress: Progress | None = None,
) -> None:
    """Fit those scores that need statistics on a labelled set (the training set), all in one pass over it."""
    needing = [score for score in scores if isinstance(score, FittedScore)]
    if needing:
        fit_together(needing, numbered_outputs(predictor, dataset, progress))


_WINDOWS = 1 << 10  # more than any training image has: numbers that no other window has


def image_of(number: int) -> int:
    """The index of the image that a window with a number of `numbered_outputs` is of."""
    return number // _WINDOWS


def numbered_outputs(
    predictor: Predictor, dataset: SegmentationDataset, progress: Progress | None
) -> Iterator[tuple[int, Output, Tensor]]:
    """A number of its own, the output and the labels of every window of this process's images."""
    for sample, index in _numbered(dataset, progress):
        for window, (output, labels) in enumerate(predictor.outputs(sample)):
            yield index * _WINDOWS + window, output, labels
