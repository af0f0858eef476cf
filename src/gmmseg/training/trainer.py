"""The training loop: cross-entropy of the posterior, optimizer step, EM step."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gmmseg import distributed
from gmmseg.mixture import OnlineEM
from gmmseg.mixture.em import Diagnostics, EMState
from gmmseg.models import Segmenter
from gmmseg.models.outputs import EMPoints
from gmmseg.models.pairing import PairedOutput
from gmmseg.models.saving import present_names
from gmmseg.models.weights import listed
from gmmseg.samples import Batch
from gmmseg.training.batch_norm import synchronised_batch_norm
from gmmseg.training.checkpoint import TrainingState, list_checkpoints, save_checkpoint
from gmmseg.training.logging import RunLog
from gmmseg.training.loss import Loss
from gmmseg.training.optim import Optimization, decline, learning_rate_factor
from gmmseg.training.stop_requests import StopFlag, stop_requests
from gmmseg.training.train_settings import TrainSettings

Validate = Callable[[Segmenter], dict[str, float]]
NEGATIVE_LOSS = (
    "the loss is below zero now, which is no fault: its likelihood term is minus the logarithm of a density, "
    "and a density, unlike a probability, may be more than one"
)
_PATIENCE = 200  # steps after which a class never seen, or a collapsed component, is worth a warning


class Loader(Protocol):
    """Batches of one epoch; the same for the same epoch, whatever happened before."""

    def set_epoch(self, epoch: int) -> None: ...
    def __iter__(self) -> Iterator[Batch]: ...


class StepReport(NamedTuple):
    """What a training step came to: its loss and the terms of it, images and seconds, those of EM."""

    terms: dict[str, float]
    images: int
    seconds: float
    em_seconds: float


class TrainingDiverged(RuntimeError):
    """The loss or the weights are not finite."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and has saved its state."""


class Trainer:
    """Owns the loop and its state; everything it needs is handed over already built.

    ``optimization`` is what moves the segmenter. ``validate`` returns named numbers for a segmenter; the one
    called ``score`` decides which weights are best. ``about`` is plain data that checkpoints carry: what run
    this is.
    """

    def __init__(
        self,
        segmenter: Segmenter,
        loader: Loader,
        optimization: Optimization,
        accelerator: Accelerator,
        settings: TrainSettings,
        folder: Path,
        validate: Validate | None = None,
        about: dict[str, object] | None = None,
    ) -> None:
        self.segmenter, self.loader, self.accelerator = segmenter, loader, accelerator
        self.settings, self.folder, self.validate, self.about = settings, folder, validate, about
        self.schedule, self.learners = optimization.schedule, optimization.learners
        self.apart = optimization.apart
        self.network, self.optimizer = accelerator.prepare(optimization.network, optimization.optimizer)
        decay = settings.ema
        self.average = (
            AveragedModel(segmenter, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
            if decay
            else None
        )
        self.step, self.epoch, self.batches_done = 0, 0, 0
        self.best = float("-inf")

    @property
    def loss(self) -> Loss:
        """That of the segmenter's own head."""
        return self.learners[0].loss

    @property
    def em(self) -> OnlineEM | None:
        """That of the segmenter's own head."""
        return self.learners[0].em

    # The loop -----------------------------------------------------------------------------------------

    def run(self, is_over: Callable[[], bool] | None = None) -> Segmenter:
        """Train to the last step; returns the segmenter to export. Ctrl-C saves and raises Interrupted.

        ``is_over`` is asked after each step: true on one process makes it the last step of all.
        """
        settings, main = self.settings, self.accelerator.is_main_process
        log = RunLog(self.folder, settings.steps, self.step, tensorboard=settings.tensorboard, active=main)
        batches = self._batches()
        try:
            with stop_requests() as stop:
                last = self.step >= settings.steps
                while not last:
                    report = self.train_step([next(batches) for _ in range(settings.accumulate)])
                    last = self.step == settings.steps or _for_all(is_over)
                    self._report(log, report, last)
                    self._keep(log, stop, last)
        finally:
            log.close()
        return self.exported

    def _keep(self, log: RunLog, stop: StopFlag, last: bool) -> None:
        """Validate and save where it is time to; on a stop request save and raise Interrupted."""
        settings = self.settings
        if self.validate and (last or self.step % settings.validate_every == 0):
            self._check_weights()
            self._validate(log)
        # All processes stop at the same step; one that left alone would keep the others waiting for ever.
        stopping = distributed.any_process(bool(stop))
        if last or stopping or self.step % settings.save_every == 0:
            self._check_weights()
            path = self.save()
            if stopping and not last:
                raise Interrupted(f"stopped at step {self.step}, the state is in {path}")

    def train_step(self, batches: Sequence[Batch]) -> StepReport:
        """One step of the optimizer, of EM and of the schedule, on the sum over ``batches``."""
        started = time.perf_counter()
        self._seed_step()
        self._set_train_mode()
        terms: dict[str, float] = {}
        em_batches: list[list[EMPoints]] = [[] for _ in self.learners]
        shares = self._shares(batches)
        for index, batch in enumerate(batches):
            with self._maybe_no_sync(index == len(batches) - 1):
                paired = self._forward(batch)
                losses = self._losses(paired, [each[index] for each in shares])
                loss = self._backward(losses, batch)
            for name, value in {"loss": loss / len(losses), **_means(losses)}.items():
                terms[name] = terms.get(name, 0.0) + float(value.detach())
            for learner, points, output in zip(self.learners, em_batches, paired):
                if learner.em is not None:
                    points.append(output.points.for_em())
        if self.settings.clip_norm is not None:
            self.accelerator.clip_grad_norm_(self.network.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        em_seconds = self._em_step(em_batches)
        if self.average is not None:
            self.average.update_parameters(self.segmenter)
        self.step += 1
        images = sum(len(batch.images) for batch in batches) * self.accelerator.num_processes
        return StepReport(terms, images, time.perf_counter() - started, em_seconds)

    def _forward(self, batch: Batch) -> list[PairedOutput]:
        """What each learner's head says of the images, with their labels."""
        with self.accelerator.autocast(), synchronised_batch_norm():
            output = self.network(batch.images)
        outputs = zip((output, *output.companions), self._parts(batch.labels), strict=True)
        return [self.segmenter.paired(*each) for each in outputs]

    def _parts(self, labels: Tensor) -> Sequence[Tensor]:
        """Of the labels of a batch, those that each learner sees."""
        count = len(self.learners)
        return labels.chunk(count) if self.apart else [labels] * count

    def _losses(self, paired: list[PairedOutput], shares: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The named terms of each learner, by the ``shares`` that its part of this batch has in the step."""
        every = (each.loss(output, self.step) for each, output in zip(self.learners, paired, strict=True))
        return [
            {name: value * share[name] for name, value in terms.items()}
            for terms, share in zip(every, shares, strict=True)
        ]

    def _backward(self, losses: list[dict[str, Tensor]], batch: Batch) -> Tensor:
        """Add the gradient of the weighted sum of ``losses``, which is returned and must be finite.

        A sum over learners, so that each learns as it would alone.
        """
        loss = sum(self.settings.weight(name) * value for each in losses for name, value in each.items())
        assert isinstance(loss, Tensor)
        self._check(loss, batch)
        self.accelerator.backward(loss)
        return loss

    def _seed_step(self) -> None:
        """Torch's random numbers (dropout, dropped paths) depend on seed, step and process alone.

        So they differ between processes, and a resumed run draws in every process what it would have drawn.
        """
        key = np.random.SeedSequence((self.settings.seed, self.step, distributed.rank()))
        torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> 1))

    def _shares(self, batches: Sequence[Batch]) -> list[list[dict[str, Tensor]]]:
        """What each term of the loss counts for, by learner and by batch of this step's ``batches``.

        A term is a mean over what is labelled in its batch. Weighed so, the sum over batches and the mean
        over processes (DDP averages gradients) make the mean over all that is labelled.
        """
        parts = zip(*(self._parts(batch.labels) for batch in batches), strict=True)
        each = [[self.loss.label_counts(labels) for labels in of_learner] for of_learner in parts]
        counts = torch.stack([torch.stack([torch.stack([*one.values()]) for one in own]) for own in each])
        total = distributed.sum_over_processes(counts.float().sum(1, keepdim=True)).clamp_min(1)
        shares = counts / total * distributed.world_size()  # (learners batches terms)
        return [[dict(zip(each[0][0], batch)) for batch in own] for own in shares]

    def _em_step(self, em_batches: list[list[EMPoints]]) -> float:
        """One EM step of each learner on the points of all forward passes; returns the seconds it took."""
        started = time.perf_counter()
        for learner, batches in zip(self.learners, em_batches):
            if learner.em is not None:
                learner.em.step(*_joined(batches), forgetting_scale=decline(self.step, self.settings))
        return time.perf_counter() - started

    def _batches(self) -> Iterator[Batch]:
        """Batches without end, from where the state says."""
        while True:
            self.loader.set_epoch(self.epoch)
            done = self.batches_done
            for index, batch in enumerate(self.loader):
                if index >= done:
                    self.batches_done = index + 1
                    yield batch
            self.epoch, self.batches_done = self.epoch + 1, 0

    def _set_train_mode(self) -> None:
        self.network.train()
        if self.settings.backbone_multiplier == 0:
            self.segmenter.backbone.eval()

    def _maybe_no_sync(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.accelerator.no_sync(self.network)

    def _check(self, loss: Tensor, batch: Batch) -> None:
        finite = bool(loss.isfinite())
        # All processes stop together: one left alone in the backward pass would wait for the others.
        if distributed.any_process(not finite):
            where = "batch of another process" if finite else f"batch {', '.join(batch.names)}"
            self._stop_diverged(f"the loss is {'not finite' if finite else loss.item()}", f" on the {where}")

    def _check_weights(self) -> None:
        """Weights that are not finite are never exported, nor saved as a state to go on from."""
        broken = [
            name
            for model in (self.segmenter, self.exported)
            for name, value in model.state_dict().items()
            if value.is_floating_point() and not bool(value.isfinite().all())
        ]
        if distributed.any_process(bool(broken)):
            self._stop_diverged(f"weights are not finite{listed(broken, 3)}")

    def _stop_diverged(self, what: str, where: str = "") -> None:
        """Called by all processes; the main one keeps the state to look at."""
        checkpoints = self.folder / "checkpoints"
        if self.accelerator.is_main_process:
            save_checkpoint(checkpoints, self.step, self.state_dict(), label="diverged")
        good = next(iter(list_checkpoints(checkpoints)), None)
        raise TrainingDiverged(
            f"{what} at step {self.step}{where}; the state is in {checkpoints}"
            + (f", the last good one in {good}" if good else "")
            + ". Try a lower learning rate, clip_norm, or precision: no"
        )

    # Reports ------------------------------------------------------------------------------------------

    def _report(self, log: RunLog, report: StepReport, last: bool) -> None:
        speed = report.images / report.seconds
        rate = self.settings.learning_rate * learning_rate_factor(self.step - 1, self.settings)
        log.advance({"loss": f"{report.terms['loss']:.3f}", "lr": f"{rate:.1e}", "images/s": f"{speed:.1f}"})
        if report.terms["loss"] < 0:
            log.tell_once("negative", NEGATIVE_LOSS)
        if self.step % self.settings.log_every and not last:
            return
        terms = self._mean_over_processes(report.terms)
        entry: dict[str, object] = {**terms, "learning_rate": rate, "images_per_second": speed}
        if self.em is not None:
            own, *others = (each.em.diagnostics() for each in self.learners if each.em is not None)
            entry |= {"em_seconds": report.em_seconds, "em": own}
            for health in (own, *others):
                self._warn(log, health)
        log.entry(self.step, "train", entry)

    def _mean_over_processes(self, terms: dict[str, float]) -> dict[str, float]:
        everywhere = distributed.gather_objects(terms)
        names = {name: None for each in everywhere for name in each}
        return {name: sum(each.get(name, 0.0) for each in everywhere) / len(everywhere) for name in names}

    def _warn(self, log: RunLog, health: Diagnostics) -> None:
        if self.step < _PATIENCE:
            return
        if health["unseen"]:
            names = self.segmenter.label_names or range(self.segmenter.num_classes)
            unseen = ", ".join(str(names[index]) for index in health["unseen"])
            log.warn_once("unseen", f"after {self.step} steps no pixel of these classes was seen: {unseen}")
        if health["collapsed"] or health["starved"]:
            log.warn_once(
                "collapsed",
                f"{health['collapsed']} components repeat another of their class and {health['starved']} "
                "are out of use; em.reseed=true moves them",
            )

    def _validate(self, log: RunLog) -> None:
        assert self.validate is not None
        # Batch norm's statistics follow the images of each process; those of the main one are exported.
        distributed.copy_from_main(self.exported.buffers())
        numbers = self.validate(self.exported)
        log.entry(self.step, "validation", numbers)
        better = numbers.get("score", float("-inf")) > self.best
        if better:
            self.best = numbers["score"]
            if self.accelerator.is_main_process:
                self.exported.save_pretrained(self.folder / "best")
        if "miou" in numbers:
            best = ", the best so far" if better else ""
            log.tell(f"step {self.step}: mIoU on the validation images {100 * numbers['miou']:.1f} %{best}")

    # State --------------------------------------------------------------------------------------------

    @property
    def exported(self) -> Segmenter:
        """The segmenter to validate and export: the averaged one where there is one."""
        if self.average is None:
            return self.segmenter
        averaged = self.average.module
        assert isinstance(averaged, Segmenter)
        return averaged

    def state_dict(self) -> TrainingState:
        """Everything needed to go on exactly, and nothing else."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "batches_done": self.batches_done,
            "best": self.best,
            "segmenter": self.segmenter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "em": self.em.state_dict() if self.em else None,
            "em_of_companions": [each.em.state_dict() for each in self.learners[1:] if each.em],
            "average": self.average.state_dict() if self.average else None,
            "loss": self.loss.state_dict(),
            "about": self.about,
        }

    def save(self) -> Path:
        """Write a checkpoint (main process only); returns its path."""
        path = self.folder / "checkpoints" / f"step_{self.step:08d}.pt"
        if self.accelerator.is_main_process:
            save_checkpoint(path.parent, self.step, self.state_dict())
        self.accelerator.wait_for_everyone()
        return path

    def load_state_dict(self, state: TrainingState) -> None:
        """Continue from a checkpoint's state as if never interrupted."""
        self.segmenter.load_state_dict(present_names(state["segmenter"], self.segmenter.state_dict()))
        if self.average is not None:
            average = cast(dict[str, Tensor], state["average"])
            self.average.load_state_dict(present_names(average, self.average.state_dict()))
        self._load_optimizer(state)
        # Earlier versions wrote the classifier of a warm-up, or None, under a name of its own.
        self.loss.load_state_dict(state.get("loss") or state.get("warm_classifier") or {})
        if self.em is not None:
            self.em.load_state_dict(cast(EMState, state["em"]))
        others = [each.em for each in self.learners[1:] if each.em is not None]
        for em, kept in zip(others, state.get("em_of_companions", []), strict=True):
            em.load_state_dict(kept)
        self.step, self.epoch, self.batches_done = state["step"], state["epoch"], state["batches_done"]
        self.best = state["best"]

    def _load_optimizer(self, state: TrainingState) -> None:
        """The moments come from the checkpoint, learning rates and decay from the settings of this run."""
        chosen = [{**group, "params": None} for group in self.optimizer.param_groups]
        rates = list(self.schedule.base_lrs)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.schedule.base_lrs = rates
        factor = learning_rate_factor(self.schedule.last_epoch, self.settings)
        for group, choice, rate in zip(self.optimizer.param_groups, chosen, rates):
            group.update({**choice, "params": group["params"], "lr": rate * factor})


def _means(losses: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Each term as the mean over learners."""
    return {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}


def _joined(batches: list[EMPoints]) -> EMPoints:
    """The points of several forward passes as those of one; images are numbered on."""
    points, labels, groups, correct = zip(*batches)
    first = 0
    shifted = []
    for each in groups:
        shifted.append(each + first)
        first += int(each.max()) + 1
    return EMPoints(*(torch.cat(each) for each in (points, labels, shifted, correct)))


def _for_all(is_over: Callable[[], bool] | None) -> bool:
    """Whether one of the processes says so; without anybody to ask, no."""
    return is_over is not None and distributed.any_process(is_over())
