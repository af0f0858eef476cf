"""Calibration: what labelled images that a network was not trained on tell about its scores.

From which anomaly score on a pixel is unknown and what that promises, how sure the posterior may be, and what
evidence is typical of each class. On its training images a network is too sure of itself to tell.
"""

import math
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg import distributed
from gmmseg.inference.image_losses import EXACT, ImageLosses, LossCurve, alarm_level
from gmmseg.inference.image_statistics import ReferenceImages
from gmmseg.inference.predictor import Predictor
from gmmseg.inference.readings import Fused
from gmmseg.inference.thresholds import ScoreHistogram
from gmmseg.inference.windows import Maps, Reading, anomaly_map
from gmmseg.labels import IGNORE
from gmmseg.models import Calibration, Segmenter, SegmenterOutput
from gmmseg.models.calibration_file import (
    ANOMALY_MAP,
    FUSED,
    PIXELS,
    PROMISED,
    CalibrationData,
    ScoreMoments,
    Threshold,
)
from gmmseg.models.false_alarms import IMAGE, PIXEL, FalseAlarmCurve, FalseAlarms, TooFewImages
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.saving import digest
from gmmseg.samples import Progress, Sample, SegmentationDataset, check_classes, walk

PIXELS_PER_IMAGE = 2000
"""Neighbouring pixels are much alike: this many of an image, evenly spread, are enough."""
SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
"""The scores that these shares of known pixels exceed are kept with the calibration."""
WEIGHED_EVERY = 5
"""One image in so many weighs the parts of the fused score, and takes no part in what the threshold promises:
of a score that the calibration images had a say in, they would show less than a new image does."""
DEFAULT = FalseAlarms()
"""What a threshold promises where nobody asks for something else."""
_LOWEST = float(np.finfo(np.float32).min)


class _NamedReading(Protocol):
    """A reading with a name."""

    @property
    def name(self) -> str: ...
    def __call__(self, output: SegmenterOutput) -> Tensor: ...


class TemperatureFit:
    """The loss of labels at temperatures from 1/8 to 256, of which `best` is the least; no logits are kept.

    Likelihoods of many channels are far more certain than they are correct: mixtures fitted afterwards may
    need a temperature of 50.
    """

    def __init__(self) -> None:
        self.exponents = torch.linspace(-3, 8, 89, dtype=torch.float64)
        self.losses = torch.zeros_like(self.exponents)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits (n c) of pixels with labels (n) int64."""
        for index, exponent in enumerate(self.exponents):
            scaled = logits.float() / 2 ** float(exponent)
            self.losses[index] += F.cross_entropy(scaled, labels, reduction="sum").double()

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.losses = distributed.sum_over_processes(self.losses)

    def best(self) -> float:
        """What to divide logits by so that labels are likeliest: 1 before anything was seen.

        Warns where the best lies beyond the range and its end is what comes back.
        """
        if not bool(self.losses.any()):
            return 1.0
        self._warn_at_the_ends()
        least = int(self.losses.argmin().clamp(1, len(self.losses) - 2))
        # The bottom of the parabola through the least loss and its neighbours.
        before, here, after = self.losses[least - 1 : least + 2].tolist()
        curvature = before - 2 * here + after
        shift = 0.5 * (before - after) / curvature if curvature > 0 else 0.0
        step = float(self.exponents[1] - self.exponents[0])
        return 2 ** (float(self.exponents[least]) + step * min(max(shift, -1.0), 1.0))

    def _warn_at_the_ends(self) -> None:
        least = int(self.losses.argmin())
        if least == len(self.losses) - 1:
            warnings.warn(
                f"temperature {2 ** float(self.exponents[-1]):g} is the highest that is tried: the posterior "
                "says almost nothing about these labels. Are they of the model's classes, in its order, "
                "and was the model trained or fitted?",
                stacklevel=3,
            )
        elif least == 0:
            warnings.warn(
                f"temperature {2 ** float(self.exponents[0]):g} is the lowest that is tried: hardly a pixel "
                "is wrong here, so nothing speaks against being surer. Calibrate on images not trained on",
                stacklevel=3,
            )


class TypicalEvidence:
    """Mean evidence of each class over its own pixels."""

    def __init__(self, num_classes: int) -> None:
        self.sums = torch.zeros(num_classes, dtype=torch.float64)
        self.counts = torch.zeros(num_classes, dtype=torch.float64)

    def update(self, evidence: Tensor, labels: Tensor) -> None:
        """Take in evidence (n c) of pixels with labels (n) int64."""
        own = evidence.gather(1, labels[:, None])[:, 0].double()
        self.sums.index_add_(0, labels, own)
        self.counts.index_add_(0, labels, torch.ones_like(own))

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.sums = distributed.sum_over_processes(self.sums)
        self.counts = distributed.sum_over_processes(self.counts)

    def means(self) -> tuple[float, ...]:
        """One number per class; a class without a pixel takes the mean of the others'."""
        seen = self.counts > 0
        means = self.sums / self.counts.clamp_min(1)
        return tuple(torch.where(seen, means, means[seen].mean()).tolist())


class MomentsFit:
    """Mean and deviation of each of some scores over the known cells of the network's outputs."""

    def __init__(self, scores: Sequence[_NamedReading]) -> None:
        self.scores = scores
        self.sums = torch.zeros(3, len(scores), dtype=torch.float64)

    def update(self, output: SegmenterOutput, labels: Tensor) -> None:
        """Take in an output and its labels (b H W)."""
        known = shrink_labels(labels, output.logits.shape[-2:]) != IGNORE
        values = torch.stack([score(output)[known] for score in self.scores], dim=1).cpu().double()
        self.sums += torch.stack([torch.ones_like(values), values, values.square()]).sum(1)

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.sums = distributed.sum_over_processes(self.sums)

    @property
    def has_seen(self) -> bool:
        """Whether there was a known cell."""
        return bool(self.sums[0].any())

    def moments(self) -> dict[str, ScoreMoments]:
        """By name of the score."""
        count, total, squares = self.sums
        if not self.has_seen:
            raise ValueError(
                f"no known cells to weigh the parts of the {FUSED} score by: give images with labels other "
                "than ignore"
            )
        means = total / count
        deviations = (squares / count - means.square()).clamp_min(1e-12).sqrt()
        pairs = zip(means.tolist(), deviations.tolist())
        return {score.name: ScoreMoments(*pair) for score, pair in zip(self.scores, pairs)}


class FalseAlarmCounts:
    """What every threshold costs on the images seen: pixels above it, and images with a region above it.

    ``left_out``: how many more images there are, which weigh the parts of the score.
    """

    def __init__(self, min_area: int = 1, left_out: int = 0) -> None:
        self.min_area, self.left_out = min_area, left_out
        self.losses = {PIXEL: ImageLosses(), IMAGE: ImageLosses(EXACT)}

    def update(self, scores: Tensor, predicted: Tensor, known: Tensor) -> None:
        """Take in scores (h w), predicted classes (h w) and which pixels are known (h w) of one image."""
        values, region = scores.detach().float().cpu().numpy(), known.cpu().numpy()
        groups = predicted.cpu().numpy().astype(np.int64) + 1
        inside = values[region]
        both = np.concatenate([np.zeros(len(inside), np.int64), groups[region]])
        self.losses[PIXEL].add_image(both, np.concatenate([inside, inside]))
        present = np.unique(both)  # none, where no pixel is known
        parts = (region if group == 0 else region & (groups == group) for group in present)
        levels = [alarm_level(values, part, self.min_area) for part in parts]
        self.losses[IMAGE].add_image(present, np.array(levels, np.float32))

    def refuse_few(self, asked: FalseAlarms, images: int) -> None:
        """TooFewImages if so many images cannot promise what is asked for."""
        if images < asked.images_needed:
            raise self._too_few(asked, images)

    def _too_few(self, asked: FalseAlarms, images: int) -> TooFewImages:
        """The error for a promise that so many images cannot give, beside those left out."""
        give = "give more images"
        beside = ""
        if self.left_out:
            beside = f" beside {self.left_out} that weigh the parts of the {FUSED} score"
            in_all = math.ceil(asked.images_needed * WEIGHED_EVERY / (WEIGHED_EVERY - 1))
            give = f"give {in_all} images in all, of which one in {WEIGHED_EVERY} weighs"
        return TooFewImages(
            f"{asked.alpha:g} false alarms per {asked.per} need at least {asked.images_needed} images with "
            f"known pixels, there are {images}{beside}; {give}, or allow more false alarms"
        )

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        for losses in self.losses.values():
            losses.merge_processes()

    def curves(self, alphas: tuple[float, ...]) -> dict[str, FalseAlarmCurve]:
        """By what is counted, the curves that a calibration keeps; thresholds of ``alphas`` are exact."""
        found = {per: losses.curve(0) for per, losses in self.losses.items()}
        return {per: curve.kept(alphas) for per, curve in found.items() if curve is not None}

    def threshold(self, asked: FalseAlarms, num_classes: int) -> Threshold:
        """The lowest threshold that keeps a promise; TooFewImages or ValueError where none does."""
        losses = self.losses[asked.per]
        curve = losses.curve(0)
        images = 0 if curve is None else curve.images
        value = None if curve is None else _lowest(curve, asked.alpha)
        if value is None:
            raise self._too_few(asked, images)
        if value == math.inf:
            raise ValueError(
                f"so many known pixels have the score infinity that no threshold keeps {asked.alpha:g} false "
                f"alarms per {asked.per}; ask for more, or look at the model's scores"
            )
        if value == _LOWEST:
            raise ValueError(
                f"hardly an image has a region of {asked.min_area} known pixels, so every threshold keeps "
                "the promise and none means anything; give a smaller least area"
            )
        own = (losses.curve(1 + index) for index in range(num_classes))
        by_class = [None if each is None else _lowest(each, asked.alpha) for each in own]
        finite = tuple(None if each in (math.inf, _LOWEST) else each for each in by_class)
        return Threshold(value, false_alarms=asked, images=images, by_class=finite)


def _lowest(curve: LossCurve, alpha: float) -> float | None:
    """The threshold for ``alpha`` as a file can hold it: the lowest number in place of -inf."""
    found = curve.threshold(alpha)
    return None if found is None else max(found, _LOWEST)


class _Findings:
    """What one pass over labelled images collects; ``applied``: the temperature logits come at."""

    def __init__(self, num_classes: int, applied: float, false_alarms: FalseAlarmCounts) -> None:
        self.applied = applied
        self.histogram = ScoreHistogram()
        self.false_alarms = false_alarms
        self.images = ReferenceImages()
        self.temperature = TemperatureFit()
        self.typical = TypicalEvidence(num_classes) if num_classes else None

    def update(self, maps: Maps, sample: Sample, *, new: bool) -> None:
        """Take in one image: its first score and, of some pixels, logits and evidence (the other scores).

        ``new``: it had no say in the score, so that it stands for images to come.
        """
        labelled = sample.labels != IGNORE
        known = labelled.flatten().nonzero().squeeze(1)
        self.histogram.update(maps.anomaly[0].cpu().flatten()[known])
        if new:
            self.images.update(maps.anomaly[0].float().cpu().numpy())
        if len(known) == 0:
            return
        if new:
            self.false_alarms.update(maps.anomaly[0], maps.labels[0], labelled)
        chosen = known[_evenly(len(known), PIXELS_PER_IMAGE)]
        here = chosen.to(maps.logits.device)
        labels = sample.labels.flatten()[chosen].long()
        as_trained = self.applied * maps.logits[0].flatten(1)[:, here].T.cpu()
        self.temperature.update(as_trained, labels)
        if self.typical is not None:
            self.typical.update(maps.scores[0, 1:].flatten(1)[:, here].T.cpu(), labels)

    def merge_processes(self) -> None:
        """Take in what all processes have seen."""
        self.histogram.merge_processes()
        self.false_alarms.merge_processes()
        self.images.merge_processes()
        self.temperature.merge_processes()
        if self.typical is not None:
            self.typical.merge_processes()

    def thresholds(self, asked: FalseAlarms | None, num_classes: int) -> dict[str, Threshold]:
        """The threshold that keeps what was asked for.

        Where nothing was, and the images do not do for the usual promise, the quantile of all their pixels.
        """
        if asked is not None:
            return {PROMISED: self.false_alarms.threshold(asked, num_classes)}
        pooled = self.histogram.threshold(DEFAULT.alpha)  # refuses a set without known pixels
        try:
            return {PROMISED: self.false_alarms.threshold(DEFAULT, num_classes)}
        except ValueError as reason:
            share = f"{100 * DEFAULT.alpha:g} % of all their pixels together exceed the threshold"
            instead = f"{share}, without a promise" if math.isfinite(pooled) else "there is no threshold"
            if distributed.rank() == 0:
                warnings.warn(f"{reason}; until then {instead}", stacklevel=4)
            return {PIXELS: Threshold(pooled, DEFAULT.alpha)} if math.isfinite(pooled) else {}


@torch.no_grad()
def calibrate(
    model: Segmenter | Predictor,
    dataset: SegmentationDataset,
    *,
    false_alarms: FalseAlarms | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """The Calibration of a model on a labelled set of its classes; nothing is changed.

    ``model`` is a segmenter, or a predictor that looks at images in another way than the segmenter would.
    Its threshold promises ``false_alarms`` of new images like these: TooFewImages where these are too few.
    By default 5 % per pixel; too few images then give a threshold without a promise, and a warning.
    One pass over the images, as the predictor looks at them. With a density beside the head the score is the
    fused one, whose parts every fifth image weighs: the promise then rests on the others. Several processes
    share the images and return the same. A segmenter that is given it keeps all its labels.
    """
    predictor = model if isinstance(model, Predictor) else Predictor(model)
    segmenter = predictor.segmenter
    classes = check_classes(dataset, segmenter.num_classes, segmenter.label_names)
    weighing = weighing_images(segmenter, len(dataset))
    alarms = FalseAlarmCounts((false_alarms or DEFAULT).min_area, len(weighing))
    if false_alarms is not None:
        alarms.refuse_few(false_alarms, len(dataset) - len(weighing))
    weighing, moments = _weighed(predictor, dataset, progress) if weighing else (weighing, {})
    found = _gone_through(predictor, dataset, weighing, moments, alarms, progress)
    alphas = SHARES if false_alarms is None else (*SHARES, false_alarms.alpha)
    return Calibration(
        weights=digest(segmenter),
        thresholds=found.thresholds(false_alarms, segmenter.num_classes),
        temperature=found.temperature.best(),
        typical=None if found.typical is None else found.typical.means(),
        data=CalibrationData(dataset.name, dataset.split, classes.names, len(dataset)),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        score=FUSED if moments else ANOMALY_MAP,
        quantiles=_quantiles(found.histogram, SHARES),
        moments=moments,
        inference=predictor.inference,
        false_alarms=found.false_alarms.curves(alphas),
        image_statistics=found.images.counts(),
    )


def weighing_images(segmenter: Segmenter, images: int, first: int = 0) -> range:
    """Which of so many images weigh the parts of the score of a segmenter; none where it has no parts."""
    return range(first, images if segmenter.density is not None else 0, WEIGHED_EVERY)


def _gone_through(
    predictor: Predictor,
    dataset: SegmentationDataset,
    weighing: range,
    moments: dict[str, ScoreMoments],
    alarms: FalseAlarmCounts,
    progress: Progress | None,
) -> _Findings:
    """What one pass over the images finds, of all processes; those ``weighing`` had a say in the score."""
    segmenter = predictor.segmenter
    generative = 0 if segmenter.mixture is None else segmenter.num_classes
    score = Fused(moments) if moments else anomaly_map
    readings: list[Reading] = [score, *(partial(_evidence_of, index) for index in range(generative))]
    found = _Findings(generative, segmenter.temperature, alarms)
    for sample, index in zip(walk(dataset, progress), distributed.shard(len(dataset))):
        found.update(predictor.maps(sample, readings), sample, new=index not in weighing)
    found.merge_processes()
    return found


def _weighed(
    predictor: Predictor, dataset: SegmentationDataset, progress: Progress | None
) -> tuple[range, dict[str, ScoreMoments]]:
    """The images that weigh the parts of the fused score, and the parts' mean and deviation over these.

    Every fifth from the first on or, where nothing in those is labelled, from the next.
    """
    for first in range(min(WEIGHED_EVERY, len(dataset))):
        weighing = weighing_images(predictor.segmenter, len(dataset), first)
        fit = MomentsFit(Fused.parts)
        mine = [weighing[place] for place in distributed.shard(len(weighing))]
        for sample in walk(dataset, progress, mine):
            for output, labels in predictor.outputs(sample):
                fit.update(output, labels)
        fit.merge_processes()
        if fit.has_seen:
            break
    return weighing, fit.moments()


def _quantiles(histogram: ScoreHistogram, shares: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Pairs (share, score that this share of the scores exceeds), those with an infinite score left out."""
    pairs = ((share, histogram.threshold(share)) for share in shares)
    return tuple((share, score) for share, score in pairs if math.isfinite(score))


def _evenly(total: int, most: int) -> Tensor:
    """At most ``most`` of the indices 0 .. total - 1, first and last among them."""
    count = min(most, total)
    return torch.arange(count) * (total - 1) // max(count - 1, 1)


def _evidence_of(index: int, output: SegmenterOutput) -> Tensor:
    """The map (b h w) of one class's evidence."""
    assert output.evidence is not None
    return output.evidence[:, index]
