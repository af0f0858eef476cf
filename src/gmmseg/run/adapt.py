"""Adaptation: a trained softmax model and a few minutes in, a generative model out.

The backbone stays as it is; decoder and head, or the head alone, are trained on cached maps, with the softmax
model as their teacher. Where there is time the decoder begins anew: features that a softmax head has shaped
have unknown things among known ones, and stay so. Decoder and classifier of the softmax model stay beside the
new ones, and labels are those of both (`gmmseg.models.companion`). A density of the backbone's maps is put
beside them, too, and all of it is calibrated. What fits into the time is measured first, and then planned.
"""

import copy
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn

from gmmseg import distributed, inference
from gmmseg.bounds import Seed, check_bounds
from gmmseg.config import Config, DataSettings
from gmmseg.data.subset import EvenlySpaced
from gmmseg.distributed import Say
from gmmseg.inference import Predictor
from gmmseg.models import Segmenter, build
from gmmseg.models.companion import Companion, Kind, companion_of
from gmmseg.models.features import FeatureExtractor, FrozenFeatures, SplitFeatures, begin_anew_
from gmmseg.models.heads import HEAD_PRESETS
from gmmseg.models.segmenter import replace_head
from gmmseg.models.zoo import ZOO
from gmmseg.run.building import (
    make_crops,
    make_loader,
    make_trainer,
    must_use_cpu,
    refuse_unlabelled,
    validate,
)
from gmmseg.run.fit import fit_density, refuse_queries
from gmmseg.run.runs import is_generative, run_config
from gmmseg.samples import FingerprintedDataset, Progress
from gmmseg.training.cached_crops import FOLDER, CachedCrops, remove_crops
from gmmseg.training.run_folder import locked, refuse_weights, refuse_work
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Interrupted, Trainer

BATCH = 8
LEARNING_RATE = 3e-3
CAREFUL_LEARNING_RATE = 1e-3
"""For a decoder that is trained on, and knows its classes already."""
ENOUGH_TO_BEGIN_ANEW = 800
"""Steps from which on a decoder is trained from new weights."""
MOST_CROPS = 5
MOST_LOOKS = 25
"""Times that training sees an image, in one crop or another: with twice as many, labels and detection in
other streets fell."""
LEAST_STEPS = 20
TOLERANCE = 0.005
"""Share of mIoU on validation images that labels may lose without a remark."""
WORKING, LOG_FILE = "adapting", "log.jsonl"
_TRIAL_CROPS, _TRIAL_STEPS = 16, 4
_VALIDATION_PASSES = 5  # the softmax model; half-way and at the end of training; two of calibration
_SHARE_OF_VALIDATION, _SHARE_OF_DENSITY, _SHARE_OF_CACHE = 0.35, 0.15, 0.3
_MARGIN = 0.9  # a machine at work on other things does not keep the pace of a trial


class Clock:
    """The time there is for all of it, in seconds, and how much of it has passed.

    ``now`` tells the time. ``started``: from when on it counts, by ``now``; None: from now on.
    """

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.monotonic, started: float | None = None
    ) -> None:
        if not 0 < seconds < float("inf"):
            raise ValueError(f"there must be some time to adapt in, got {seconds / 60:g} minutes")
        self.seconds, self.now = seconds, now
        self.started = now() if started is None else started

    @property
    def passed(self) -> float:
        return self.now() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.passed


@dataclass(frozen=True)
class AdaptSettings:
    """How a model is adapted."""

    train: Literal["decoder", "head"] = "decoder"
    """What is trained: all but the backbone, or the head alone, on features that stay as they are."""
    data: DataSettings | None = None
    """Crops and their augmentation; None: as in the run of the model, else two thirds of an image."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class Plan:
    """What fits into the time."""

    steps: int
    images: int
    """Of the training set, that are trained on."""
    crops: int
    """Of each image, whose maps are cached; 0: training goes through the whole network."""
    density_images: int
    """Of the training set, that the density beside the head is fitted on."""
    validation_images: int
    seconds_afterwards: float
    """What the last validation, density and calibration take: so much must be left after the last step."""
    anew: bool = False
    """Whether the decoder is trained from new weights, and not on from those of the softmax model."""

    def __str__(self) -> str:
        crops = f"{self.crops} cached crop{'s' * (self.crops > 1)}" if self.crops else "crops"
        uncached = "" if self.crops else " (not cached: this network cannot be split; --train head caches)"
        decoder = " of a new decoder" if self.anew else ""
        return (
            f"{self.steps} steps{decoder} on {crops} of {self.images} images{uncached}, a density of "
            f"{self.density_images} images, {self.validation_images} validation images"
        )


@dataclass(frozen=True)
class Adaptation:
    """What came of it: the generative model, and mIoU on validation images before and after, if there are."""

    model: Segmenter
    plan: Plan
    miou_before: float | None
    miou_after: float | None

    @property
    def keeps_labels(self) -> bool:
        """Whether labels lost no more than TOLERANCE; True where nobody could look."""
        if self.miou_before is None or self.miou_after is None:
            return True
        return self.miou_after >= self.miou_before - TOLERANCE


def adapt(
    source: str,
    dataset: FingerprintedDataset,
    folder: Path,
    clock: Clock,
    settings: AdaptSettings | None = None,
    *,
    validation: FingerprintedDataset | None = None,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Adaptation:
    """Write a generative model made of the softmax model ``source`` to ``folder``, in the time that is given.

    ``dataset``: labelled training images of its classes. ``validation``: others, to compare labels and to
    calibrate on; without them nothing is compared, and the model is not calibrated. ``say`` is told the
    plan. Where it is stopped or fails nothing is left in ``folder``.
    """
    settings, say = settings or AdaptSettings(), distributed.said_once(say)
    refuse_weights(folder)
    refuse_work(folder)
    refuse_unlabelled(dataset)
    accelerator = Accelerator(cpu=must_use_cpu())
    softmax = open_softmax(source, dataset).to(accelerator.device)
    data = _crops_like(source, softmax, dataset, settings)
    work = _Work(folder / WORKING, dataset, data, settings, accelerator, clock)
    with locked(folder), _cleared(folder / WORKING):
        costs = work.costs(softmax, validation)
        validation = _part_of(validation, costs, clock)
        before = None if validation is None else validate(softmax, validation)["miou"]
        plan = work.plan(costs, validation)
        say(f"{clock.passed:.0f} s for a trial; now {plan}")
        generative, after = work.train(softmax, plan, validation, say)
        seen = EvenlySpaced(dataset, work.images_in_time(plan))
        fitted, _ = fit_density(generative, seen, progress=progress)
        if validation is not None:
            fitted.calibration = inference.calibrate(Predictor(fitted), validation, progress=progress)
        if distributed.rank() == 0:
            fitted.save_pretrained(folder)
        distributed.wait_for_all()
    return Adaptation(fitted, plan, before, after)


def open_softmax(source: str, dataset: FingerprintedDataset) -> Segmenter:
    """The trained softmax model called ``source``, for the classes of ``dataset``; ValueError for others."""
    prefix = source.partition(":")[0]
    if source in ZOO or prefix in ("smp", "timm"):
        raise ValueError(
            f"{source} names a network, not a trained model: train it (gmmseg train CONFIG "
            f"model.name={source} --preset softmax), or give a run folder, a folder of weights, hf:owner/name"
        )
    if is_generative(source):
        raise ValueError(
            f"{source} is generative already: gmmseg fit puts a density beside its head, "
            f"gmmseg train CONFIG model.name={source} trains it on"
        )
    space = dataset.label_space
    assert space is not None
    published = "pretrained" if prefix == "torchvision" else None
    model = build(source, preset="softmax", class_names=space.names, weights=published)
    refuse_queries(model)
    model.density, model.calibration, model.colours = None, None, space.colours
    return model.eval()


@dataclass(frozen=True)
class _Costs:
    """Seconds of each piece of work; ``crop``: 0 where none is cached."""

    crop: float
    step: float
    image: float


class _Work:
    """Trials and training of one adaptation, in ``folder``."""

    def __init__(
        self,
        folder: Path,
        dataset: FingerprintedDataset,
        data: DataSettings,
        settings: AdaptSettings,
        accelerator: Accelerator,
        clock: Clock,
    ) -> None:
        self.folder, self.dataset, self.data = folder, dataset, data
        self.settings, self.accelerator, self.clock = settings, accelerator, clock
        self.image_seconds = 0.0  # known once there was a validation

    def costs(self, softmax: Segmenter, validation: FingerprintedDataset | None) -> _Costs:
        """What a crop, a step and an image take, by trying a few; what was trained in a trial is dropped."""
        crops = int(self.caches(softmax))
        trial = Plan(_TRIAL_STEPS, min(_TRIAL_CROPS, len(self.dataset)), crops, 1, 1, 0.0)
        set_seed(self.settings.seed)
        trainer, cache = self._trainer(_with_mixtures(softmax), softmax, trial)
        started = self.clock.passed
        if cache is not None:
            cache.make(trainer.segmenter)
        crop_seconds = (self.clock.passed - started) / trial.images if cache is not None else 0.0
        step_seconds = self._step_seconds(trainer)
        remove_crops(self.folder / FOLDER)
        self.accelerator.free_memory()  # of what was tried
        images = EvenlySpaced(self.dataset if validation is None else validation, 3)
        started = self.clock.passed
        validate(softmax, images)
        found = (crop_seconds, step_seconds, (self.clock.passed - started) / len(images))
        return _Costs(*map(max, zip(*distributed.gather_objects(found))))  # those of the slowest process

    def _step_seconds(self, trainer: Trainer) -> float:
        """What a step takes, its batch included: the mean of a few after the first."""
        done, started, epoch = 0, 0.0, 0
        while done <= _TRIAL_STEPS:
            trainer.loader.set_epoch(epoch)
            for batch in trainer.loader:
                trainer.train_step([batch])
                started = self.clock.passed if done == 0 else started
                done += 1
            epoch += 1
        return (self.clock.passed - started) / (done - 1)

    def plan(self, costs: _Costs, validation: FingerprintedDataset | None) -> Plan:
        """What is left of the time, shared out; ValueError where it is too little to train at all."""
        clock, seen = self.clock, 0 if validation is None else len(validation)
        density = int(_SHARE_OF_DENSITY * clock.seconds / costs.image)
        density = min(max(density, BATCH), len(self.dataset))
        afterwards = (density + 3 * seen) * costs.image
        left = min(distributed.gather_objects(clock.left))
        free = _MARGIN * (left - afterwards - seen * costs.image)
        images, crops = self._crops(_SHARE_OF_CACHE * free / costs.crop) if costs.crop else (None, 0)
        images = len(self.dataset) if images is None else images
        steps = int((free - images * crops * costs.crop) / costs.step)
        if steps < LEAST_STEPS:
            least = LEAST_STEPS * costs.step
            least = max(least / (1 - _SHARE_OF_CACHE), least + BATCH * costs.crop)
            needed = clock.seconds + (least - free) / _MARGIN
            raise ValueError(
                f"{clock.seconds / 60:g} minutes are not enough here for {LEAST_STEPS} steps: give "
                f"--minutes {math.ceil(needed / 6 + 1) / 10:g} or more"
            )
        steps = min(steps, max(LEAST_STEPS, MOST_LOOKS * images // BATCH))
        anew = self.settings.train == "decoder" and steps >= ENOUGH_TO_BEGIN_ANEW
        return Plan(steps, images, crops, density, seen, afterwards, anew)

    def _crops(self, affordable: float) -> tuple[int, int]:
        """How many images, and crops of each."""
        if affordable < len(self.dataset):
            return max(min(BATCH, len(self.dataset)), int(affordable)), 1
        return len(self.dataset), min(MOST_CROPS, int(affordable) // len(self.dataset))

    def train(
        self, softmax: Segmenter, plan: Plan, validation: FingerprintedDataset | None, say: Say
    ) -> tuple[Segmenter, float | None]:
        """The generative model with the best labels on validation images, and its mIoU there."""
        set_seed(self.settings.seed)
        generative = _with_mixtures(softmax)
        if plan.anew:
            begin_anew_(generative.features)
        generative.companions = nn.ModuleList(self._companions(softmax))
        trainer, cache = self._trainer(generative, softmax, plan)
        best = None if validation is None else _BestLabels(generative, validation, self.clock)
        trainer.validate = best
        if cache is not None:
            cache.make(trainer.segmenter, autocast=self.accelerator.autocast, say=say)
        trainer.run(lambda: self.clock.left < plan.seconds_afterwards)
        if trainer.step < plan.steps:
            say(f"the time was enough for {trainer.step} of {plan.steps} steps")
        self.image_seconds = 0.0 if best is None else best.image_seconds
        return generative.eval(), None if best is None else best.restored()

    def _companions(self, softmax: Segmenter) -> list[Companion]:
        """What stays of the softmax model; nothing where all that is not the backbone is trained, and cannot
        be told from it."""
        if not self.caches(softmax):
            return []
        kind: Kind = "head" if self.settings.train == "head" else "decoder"
        return [companion_of(softmax.features, softmax.head, kind)]

    def images_in_time(self, plan: Plan) -> int:
        """How many images there is still time to fit a density on, at the pace of the last validation."""
        if not self.image_seconds:
            return plan.density_images
        left = min(distributed.gather_objects(self.clock.left / self.image_seconds))
        return max(BATCH, min(plan.density_images, int(left) - 2 * plan.validation_images))

    def caches(self, softmax: Segmenter) -> bool:
        """Whether maps can be computed once: those of the backbone, or, for the head alone, the features."""
        return self.settings.train == "head" or isinstance(softmax.features, SplitFeatures)

    def _trainer(
        self, generative: Segmenter, softmax: Segmenter, plan: Plan
    ) -> tuple[Trainer, CachedCrops | None]:
        """What trains ``generative`` as planned, and the crops it needs, which are not made yet.

        ``softmax`` teaches it: labels that it would give elsewhere are kept so, not only those of the crops.
        """
        trained, teacher = (
            _head_alone(each) if self.settings.train == "head" else each for each in (generative, softmax)
        )
        every = -(-plan.steps // 2)
        config = Config(
            data=self.data,
            train=TrainSettings(
                steps=plan.steps,
                batch_size=BATCH,
                seed=self.settings.seed,
                learning_rate=LEARNING_RATE if plan.anew else CAREFUL_LEARNING_RATE,
                backbone_multiplier=0.0,
                cached_crops=plan.crops,
                warmup_steps=min(50, plan.steps // 10),
                validate_every=every,
                save_every=plan.steps,
            ),
        )
        images = EvenlySpaced(self.dataset, plan.images)
        crops = make_crops(config, self.folder, images)
        loader = make_loader(config, images, self.folder, self.accelerator, crops)
        trainer = make_trainer(
            config, trained, loader, self.accelerator, self.folder, crops=crops, teacher=teacher
        )
        return trainer, crops


class _BestLabels:
    """Validates a model as it is trained, and keeps the weights with the highest mIoU."""

    def __init__(self, model: Segmenter, validation: FingerprintedDataset, clock: Clock) -> None:
        self.model, self.validation, self.clock = model, validation, clock
        self.miou, self.image_seconds = float("-inf"), 0.0
        self.state: dict[str, Tensor] = {}

    def __call__(self, trained: Segmenter) -> dict[str, float]:
        """Numbers for the log. They hold no ``score``: what is best is kept here, not written."""
        started = self.clock.passed
        numbers = validate(self.model, self.validation)
        self.image_seconds = (self.clock.passed - started) / len(self.validation)
        if numbers.pop("score") > self.miou:
            self.miou = numbers["miou"]
            self.state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return numbers

    def restored(self) -> float:
        """Give the model its best weights; returns their mIoU."""
        self.model.load_state_dict(self.state)
        return self.miou


def _with_mixtures(softmax: Segmenter) -> Segmenter:
    """A copy of ``softmax`` with a new generative head."""
    return replace_head(copy.deepcopy(softmax), HEAD_PRESETS["default"]).to(softmax.mean.device)


def _head_alone(generative: Segmenter) -> Segmenter:
    """The same model, of which the head alone can be trained."""
    extractor = generative.features
    assert isinstance(extractor, FeatureExtractor)
    alone = Segmenter(FrozenFeatures(extractor), generative.head)
    alone.mean, alone.std, alone.inference = generative.mean, generative.std, generative.inference
    alone.label_names = generative.label_names
    return alone


def _part_of(
    validation: FingerprintedDataset | None, costs: _Costs, clock: Clock
) -> FingerprintedDataset | None:
    """As many validation images as there is time for."""
    if validation is None:
        return None
    count = int(_SHARE_OF_VALIDATION * clock.seconds / (_VALIDATION_PASSES * costs.image))
    count = distributed.gather_objects(min(max(count, 1), len(validation)))[0]
    return EvenlySpaced(validation, count)


def _crops_like(
    source: str, softmax: Segmenter, dataset: FingerprintedDataset, settings: AdaptSettings
) -> DataSettings:
    """How training images are cropped: as in the model's own run, or about two thirds of an image."""
    if settings.data is not None:
        return settings.data
    config = run_config(Path(source))
    if config is not None:
        return config.data
    short_side = softmax.inference.short_side
    height, width = dataset.labels(0).shape
    factor = 1.0 if short_side is None else short_side / min(height, width)
    crop = tuple(min(max(32, round(factor * side * 2 / 3 / 32) * 32), 512) for side in (height, width))
    return DataSettings(crop=(crop[0], crop[1]), short_side=short_side)


@contextmanager
def _cleared(working: Path) -> Iterator[None]:
    """A folder of working files, which is gone at the end; the log is moved up unless the work has failed."""
    main = distributed.rank() == 0
    if main:
        shutil.rmtree(working, ignore_errors=True)  # of one that was killed
    try:
        yield
        if main and (working / LOG_FILE).is_file():
            os.replace(working / LOG_FILE, working.parent / LOG_FILE)
    except Interrupted:
        raise Interrupted(f"stopped; nothing was written to {working.parent}") from None
    finally:
        if main:
            shutil.rmtree(working, ignore_errors=True)
