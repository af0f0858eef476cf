"""Watching a stream of images for a change, with a promise that holds however long one watches.

Each image becomes two statistics (`image_statistics`). Each statistic is ranked among those of the
calibration images and of all images before it in the stream, and money is bet on the ranks (`betting`).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from torch import Tensor

from gmmseg.inference.betting import Wealth
from gmmseg.inference.image_statistics import STATISTICS, RunningRanks, image_statistics
from gmmseg.inference.monitor_state import Alarm, MonitorState, StrangeImage, WatchState
from gmmseg.models.calibration_file import Calibration
from gmmseg.models.reference_images import CONDITIONS, STORED_AS, ReferenceCounts

STRANGEST = 5
"""So many of the strangest images are remembered for each statistic."""
FALSE_ALARMS = 0.01
"""The probability of ever raising a false alarm, where nobody asks for another one."""
_LARGEST = 1e300  # files hold no infinity


class NoStatistics(ValueError):
    """A calibration that was found before calibrations held statistics of images."""

    def __init__(self, model: str = "RUN") -> None:
        super().__init__(
            f"{model}: there are no statistics of calibration images to compare with; "
            f"run gmmseg calibrate {model} --data NAME:ROOT:val"
        )


@dataclass(frozen=True)
class Observation:
    """What one image of the stream did; numbers by statistic. ``alarms``: those it raised, mostly none."""

    index: int
    name: str
    statistics: dict[str, float]
    p_values: dict[str, float]
    wealth: dict[str, float]
    alarms: tuple[Alarm, ...]


class _Watch:
    """The state of one statistic: ranks, wealth and the strangest images."""

    def __init__(self, kind: str, reference: ReferenceCounts) -> None:
        # A thing stands out or does not; conditions change in both directions: a lens cap is not strange.
        self.two_sided = kind == CONDITIONS
        self.middle = float(np.median(np.repeat(reference.levels, reference.counts)))
        self.ranks = RunningRanks.from_reference(reference)
        self.wealth = Wealth(two_sided=self.two_sided)
        self.strangest: tuple[StrangeImage, ...] = ()

    def step(self, index: int, name: str, value: float, tie_breaker: float) -> float:
        """Take in the value of the next image; its p-value comes back."""
        p_value = self.ranks.step(value, tie_breaker)
        self.wealth.step(p_value)
        away = value - self.middle
        image = StrangeImage(index, name, value, abs(away) if self.two_sided else away)
        ordered = sorted((*self.strangest, image), key=lambda each: -each.distance)
        self.strangest = tuple(ordered[:STRANGEST])
        return p_value

    @property
    def shown_wealth(self) -> float:
        """The wealth as a number that a file can hold."""
        return math.exp(min(self.wealth.log_value, math.log(_LARGEST)))

    def state(self) -> WatchState:
        counts = self.ranks.as_counts()
        amounts = tuple(self.wealth.log_amounts.tolist())
        return WatchState(amounts, tuple(counts), tuple(counts.values()), self.strangest)

    def restore(self, state: WatchState, images: int) -> None:
        """Go on where ``state`` was taken, after so many images."""
        calibrated = self.ranks.total
        if len(state.log_amounts) != len(self.wealth.log_amounts) or sum(state.counts) != calibrated + images:
            raise ValueError("its numbers do not belong together; start anew with another file")
        self.ranks = RunningRanks(dict(zip(state.bins, state.counts)))
        self.wealth.restore(np.array(state.log_amounts), images)
        self.strangest = state.strangest


class Monitor:
    """Watches a stream of images for a change against the images of a calibration.

    If the images of the stream and the calibration images are exchangeable, the probability that it ever
    raises an alarm is at most ``false_alarms``, half of it for each statistic. Memory does not grow with the
    stream. ``seed``: of the random numbers that break ties between ranks.
    """

    def __init__(
        self, calibration: Calibration | None, *, false_alarms: float = FALSE_ALARMS, seed: int = 0
    ) -> None:
        if calibration is None or not set(STORED_AS.values()) <= calibration.image_statistics.keys():
            raise NoStatistics
        if not 0 < false_alarms < 1:
            raise ValueError(f"false alarms must lie between 0 and 1, got {false_alarms}")
        self.false_alarms, self.seed = false_alarms, seed
        self.reference = _fingerprint(calibration)
        self.images = 0
        self.alarms: tuple[Alarm, ...] = ()
        self._watches = {
            kind: _Watch(kind, calibration.image_statistics[STORED_AS[kind]]) for kind in STATISTICS
        }

    @property
    def limit(self) -> float:
        """The wealth at which a statistic raises an alarm."""
        return len(STATISTICS) / self.false_alarms

    def update(self, name: str, scores: Tensor) -> Observation:
        """Take in the anomaly map (h w) of the next image."""
        return self.update_statistics(name, image_statistics(scores.detach().float().cpu().numpy()))

    def update_statistics(self, name: str, statistics: Mapping[str, float]) -> Observation:
        """Take in the statistics of the next image."""
        index = self.images
        tie_breakers = np.random.default_rng((self.seed, index)).random(len(STATISTICS)).tolist()
        p_values = {
            kind: self._watches[kind].step(index, name, statistics[kind], tie_breaker)
            for kind, tie_breaker in zip(STATISTICS, tie_breakers)
        }
        self.images += 1
        raised = {each.kind for each in self.alarms}
        new = tuple(
            Alarm(kind, index, name, watch.shown_wealth)
            for kind, watch in self._watches.items()
            if kind not in raised and watch.wealth.log_value >= math.log(self.limit)
        )
        self.alarms = (*self.alarms, *new)
        return Observation(index, name, dict(statistics), p_values, self.wealth(), new)

    def wealth(self) -> dict[str, float]:
        """By statistic; an alarm is raised at `limit`."""
        return {kind: watch.shown_wealth for kind, watch in self._watches.items()}

    def strangest(self) -> dict[str, tuple[StrangeImage, ...]]:
        """By statistic, the images so far that are farthest from the middle of the calibration images."""
        return {kind: watch.strangest for kind, watch in self._watches.items()}

    def state(self) -> MonitorState:
        """All that is needed to go on later, see `restore`."""
        watches = {kind: watch.state() for kind, watch in self._watches.items()}
        return MonitorState(self.reference, self.false_alarms, self.seed, self.images, self.alarms, watches)

    def restore(self, state: MonitorState) -> None:
        """Go on where ``state`` was taken, as if it had never stopped.

        ValueError where it was taken against another calibration, or promises something else.
        """
        if state.reference != self.reference or state.watches.keys() != self._watches.keys():
            raise ValueError("it was begun with another calibration; start anew with another file")
        if state.false_alarms != self.false_alarms:
            raise ValueError(
                f"it was begun with a promise of {state.false_alarms:g} false alarms, not "
                f"{self.false_alarms:g}: a promise is not changed after looking; start anew with another file"
            )
        for kind, watch in self._watches.items():
            watch.restore(state.watches[kind], state.images)
        self.seed, self.images, self.alarms = state.seed, state.images, state.alarms


def _fingerprint(calibration: Calibration) -> str:
    """A digest of what is compared with: other weights or other calibration images have another one."""
    held = {name: asdict(each) for name, each in calibration.image_statistics.items()}
    content = json.dumps([calibration.weights, held], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
