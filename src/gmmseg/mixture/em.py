"""EM as an optimizer: stepped beside AdamW, it moves the mixtures, and nothing else does."""

from typing import Any

import torch
from torch import Tensor

from gmmseg.distributed import sum_over_processes
from gmmseg.labels import IGNORE
from gmmseg.mixture.class_batch import ClassBatch
from gmmseg.mixture.gaussian import class_evidence
from gmmseg.mixture.memory import DecayedStatistics, FeatureQueue, Memory, Moments
from gmmseg.mixture.mixture import ClassMixture
from gmmseg.mixture.sampling import sample_points
from gmmseg.mixture.settings import DEFAULT, EMSettings
from gmmseg.mixture.sinkhorn import balanced_assignment, plain_assignment
from gmmseg.mixture.whitening import Spread

COLLAPSED = 0.1
"""Two components of a class closer than this many standard deviations are one component twice."""
STARVED = 0.1
"""A component with less than this share of an even split is out of use."""


class OnlineEM:
    """One `step` per optimizer step: sample, assign (E), update (M), remember; never any gradient.

    Under torch.distributed every process ends with the same mixture, and the result does not depend on
    how the same global batch is split over processes.
    """

    def __init__(self, mixture: ClassMixture, settings: EMSettings = DEFAULT, *, seed: int = 0) -> None:
        self.mixture = mixture
        self.settings = settings
        self.seed = seed
        self.memory = make_memory(mixture, settings)
        self.spread = (
            None
            if mixture.whitening is None
            else Spread(mixture.dim, decay=settings.spread_decay, device=mixture.means.device)
        )
        device, shape = mixture.means.device, mixture.means.shape[:2]
        self.steps = 0
        self.updates = torch.zeros(shape, dtype=torch.int64, device=device)
        self.labels_seen = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.log_likelihood = torch.tensor(float("nan"), device=device)

    @torch.no_grad()
    def step(
        self, points: Tensor, labels: Tensor, groups: Tensor | None = None, *, pace: float = 1.0
    ) -> None:
        """One EM iteration on points (n d), labels (n; IGNORE is passed over) from images ``groups`` (n).

        The points of a whitened mixture must be fresh, made by `ClassMixture.points` since the last step.
        ``pace``: how fast the network still moves, as a share of its fastest. With `EMSettings.anneal` what
        is known is forgotten at that share of the usual rate.
        """
        self._check(points, labels, pace)
        pace = pace if self.settings.anneal else 1.0
        self.steps += 1
        counts = self._count_labels(labels)
        sampled, sampled_labels = sample_points(
            points.float(),
            labels,
            torch.zeros_like(labels) if groups is None else groups,
            num_classes=self.mixture.num_classes,
            per_group=self.settings.samples_per_class,
            seed=self.seed * 1_000_003 + self.steps,
        )
        if len(sampled) == 0:
            return
        if not bool(torch.stack(sampled.aminmax()).isfinite().all()):
            raise FloatingPointError(
                "points are not finite: the network has diverged; the mixture is unchanged"
            )
        if self.mixture.whitening is not None and self.spread is not None:
            features = self.mixture.whitening.features(sampled)
            # Classes weigh by the root of their count, between one vote per class and one per pixel.
            self.spread.update(features, sampled_labels, counts.sqrt(), pace)
            self.mixture.whitening.follow_(self.spread, self.settings.spread_shrinkage)
            # Coordinates first: components that start where all points lie together stay alike. The mixtures
            # are then fitted to the points as the next pass will see them.
            sampled = self.mixture.whitening(features)
        batch = ClassBatch(sampled, sampled_labels)
        self.memory.fade_(batch.classes, pace)
        if self.settings.batch_in_update:
            self._step_with_batch(batch)
        else:
            self._step_from_memory(batch)
        if self.settings.reseed:
            self._reseed_(batch)

    def _step_with_batch(self, batch: ClassBatch) -> None:
        """The paper's schedule: E and M over memory and batch, ``loops`` times, then remember the batch."""
        classes = batch.classes
        remembered = self.memory.recall(classes)
        means, variances = self.mixture.means[classes], self.mixture.variances[classes]
        for loop in range(self.settings.loops):
            responsibilities = self._expect(batch, means, variances, observe=loop == 0)
            gained = batch.moments(responsibilities)
            known = remembered + gained
            means, variances = self._maximise(known, means, variances)
        self.memory.write(classes, batch.points, responsibilities, gained)
        if self.steps % self.settings.update_every == 0:
            self._move_(classes, means, variances, known.weight > 0)

    def _step_from_memory(self, batch: ClassBatch) -> None:
        """The reference's schedule: assign and remember the batch; every so often update from memory."""
        means, variances = self.mixture.means[batch.classes], self.mixture.variances[batch.classes]
        responsibilities = self._expect(batch, means, variances, observe=True)
        self.memory.write(batch.classes, batch.points, responsibilities, batch.moments(responsibilities))
        if self.steps % self.settings.update_every == 0:
            classes = (self.memory.weight().sum(1) > 0).nonzero().squeeze(1)
            known = self.memory.recall(classes)
            means, variances = self._maximise(
                known, self.mixture.means[classes], self.mixture.variances[classes]
            )
            self._move_(classes, means, variances, known.weight > 0)

    def _expect(self, batch: ClassBatch, means: Tensor, variances: Tensor, *, observe: bool) -> Tensor:
        """Responsibilities (p m k) of the points to be used; zero for all others."""
        settings = self.settings
        log_densities = batch.log_density(means, variances)
        if observe:
            self.log_likelihood = class_evidence(log_densities, winner=False)[batch.valid].mean()
        if settings.balanced:
            responsibilities = balanced_assignment(
                log_densities,
                batch.valid,
                epsilon=settings.epsilon,
                iterations=settings.iterations,
                scale_cost=settings.scale_cost,
                hard=settings.hard,
            )
        else:
            responsibilities = plain_assignment(log_densities, batch.valid, hard=settings.hard)
        if settings.correct_only:
            responsibilities = responsibilities * self._is_correct(batch)[..., None]
        if settings.samples_per_component is not None:
            responsibilities = _first_per_component(responsibilities, settings.samples_per_component)
        return responsibilities

    def _is_correct(self, batch: ClassBatch) -> Tensor:
        """Which points (p m) the mixtures give to their own class."""
        predicted = self.mixture(batch.points.flatten(0, 1)) + self.mixture.log_prior
        return predicted.argmax(-1).view_as(batch.valid) == batch.classes[:, None]

    def _maximise(self, known: Moments, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances (p k d) from moments; a component that has seen nothing keeps its own."""
        settings = self.settings
        seen = (known.weight > 0)[..., None]
        weight = torch.where(seen, known.weight[..., None], 1.0)
        first, second = known.total / weight, known.squares / weight
        new_means = torch.nn.functional.normalize(first, dim=-1) if settings.unit_norm_means else first
        new_variances = second - 2 * new_means * first + new_means.square()
        floor = max(settings.variance_floor, settings.relative_floor * float(self.mixture.variances.mean()))
        new_variances = (new_variances.clamp_min(0.0) + settings.variance_offset).clamp_min(floor)
        return (
            torch.where(seen, new_means.to(means.dtype), means),
            torch.where(seen, new_variances.to(variances.dtype), variances),
        )

    def _move_(self, classes: Tensor, means: Tensor, variances: Tensor, seen: Tensor) -> None:
        """Blend the updated parameters (p k d) into the mixture, with momentum."""
        mixture, settings = self.mixture, self.settings
        self.updates[classes] += seen
        mean_rate = self._rate(settings.mean_momentum, classes)
        variance_rate = self._rate(settings.variance_momentum, classes)
        blended = torch.lerp(mixture.means[classes], means, mean_rate)
        if settings.unit_norm_means:
            blended = torch.nn.functional.normalize(blended, dim=-1)
        mixture.means[classes] = blended
        mixture.variances[classes] = torch.lerp(mixture.variances[classes], variances, variance_rate)
        if settings.estimate_prior:
            shares = (self.labels_seen + 1.0) / (
                self.labels_seen + 1.0
            ).sum()  # one of each, so none is impossible
            mixture.log_prior.copy_(shares.log())

    def _rate(self, momentum: float, classes: Tensor) -> Tensor:
        """How far to move towards the update, (p k 1)."""
        kept = torch.full_like(self.mixture.means[classes][..., :1], momentum)
        if self.settings.warm_momentum:
            kept = kept.minimum(1.0 - 1.0 / self.updates[classes].clamp_min(1)[..., None])
        return 1.0 - kept

    def _reseed_(self, batch: ClassBatch) -> None:
        """Put each collapsed or starved component of the classes present on a fresh point of its class."""
        classes, k = batch.classes, self.mixture.num_components
        broken = self._broken()[classes] & (batch.valid.sum(1) >= k)[:, None]
        # Points of a class come in random order, so the first k serve as fresh places.
        fresh = batch.points[:, :k] if batch.points.shape[1] >= k else batch.points[:, :1].expand(-1, k, -1)
        mixture = self.mixture
        mixture.means[classes] = torch.where(broken[..., None], fresh, mixture.means[classes])
        spread = mixture.variances[classes].mean(1, keepdim=True)
        mixture.variances[classes] = torch.where(broken[..., None], spread, mixture.variances[classes])
        marked = torch.zeros_like(self.updates, dtype=torch.bool)
        marked[classes] = broken
        self.memory.forget_(marked)
        self.updates[marked] = 0

    def _broken(self) -> Tensor:
        """Components (c k) that are starved, or repeat an earlier sibling."""
        weight = self.memory.weight()
        starved = weight * self.mixture.num_components < STARVED * weight.sum(1, keepdim=True)
        repeats = (self._distances() < COLLAPSED).tril(-1).any(-1)
        return starved | repeats

    def _distances(self) -> Tensor:
        """Distances between the components of each class (c k k), in standard deviations; inf to itself."""
        means, spread = self.mixture.means, self.mixture.variances.mean(dim=(1, 2))
        distances = torch.cdist(means, means) / (spread.sqrt()[:, None, None] * means.shape[-1] ** 0.5)
        return distances + torch.diag(torch.full_like(means[0, :, 0], torch.inf))

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Any]:
        """The health of the mixture as plain numbers.

        ``occupancy``: least share of its class's points behind any component, times k (1 = even);
        ``separation``: least distance between two components of a class, in standard deviations;
        ``fill``: mean fill of the queue, or points behind a component for statistics;
        ``collapsed`` and ``starved``: how many components; ``unseen``: ids of classes never seen;
        ``log_likelihood``: mean over the last step's points under their own class.
        """
        weight, distances = self.memory.weight(), self._distances()
        seen = weight.sum(1) > 0  # nothing is, for a queue of no length
        shares = weight[seen] * self.mixture.num_components / weight[seen].sum(1, keepdim=True)
        nearest = distances[seen].amin(dim=(1, 2))
        return {
            "occupancy": float(shares.min()) if len(shares) else 0.0,
            "separation": float(nearest.min()) if len(nearest) else 0.0,
            "fill": float(weight.mean())
            / (max(self.settings.memory_size, 1) if self.settings.memory == "queue" else 1),
            "collapsed": int((distances[seen] < COLLAPSED).tril(-1).any(-1).sum()),
            "starved": int((shares < STARVED).sum()),
            "unseen": (self.labels_seen == 0).nonzero().squeeze(1).tolist(),
            "log_likelihood": float(self.log_likelihood),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything `step` needs to go on exactly; the mixture itself is saved with the model."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "updates": self.updates.clone(),
            "labels_seen": self.labels_seen.clone(),
            "log_likelihood": self.log_likelihood.clone(),
            "memory": self.memory.state_dict(),
            "spread": None if self.spread is None else self.spread.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["updates"].shape != self.updates.shape:
            raise ValueError(
                f"the saved EM state is of {tuple(state['updates'].shape)} (classes, components), "
                f"the mixture has {tuple(self.updates.shape)}"
            )
        self.memory.load_state_dict(state["memory"])
        if self.spread is not None:
            self.spread.load_state_dict(state["spread"])
        self.steps, self.seed = state["steps"], state["seed"]
        self.updates.copy_(state["updates"])
        self.labels_seen.copy_(state["labels_seen"])
        self.log_likelihood = state["log_likelihood"].to(self.updates.device)

    def _count_labels(self, labels: Tensor) -> Tensor:
        """How many labels of each class the global batch holds, (c)."""
        known = labels[(labels >= 0) & (labels < self.mixture.num_classes)]
        counts = sum_over_processes(torch.bincount(known, minlength=self.mixture.num_classes))
        self.labels_seen += counts
        return counts

    def _check(self, points: Tensor, labels: Tensor, pace: float) -> None:
        if not 0.0 <= pace <= 1.0:
            raise ValueError(f"pace is a share of the fastest, in [0, 1], got {pace}")
        if points.ndim != 2 or points.shape[1] != self.mixture.dim or labels.shape != points.shape[:1]:
            raise ValueError(
                f"expected points (n {self.mixture.dim}) and labels (n), "
                f"got {tuple(points.shape)} and {tuple(labels.shape)}"
            )
        if self.mixture.whitening is not None and bool((points[:, -1] <= 0).any()):
            raise ValueError("these are not points of a whitened mixture: make them with its `points`")
        unknown = ((labels < 0) | (labels >= self.mixture.num_classes)) & (labels != IGNORE)
        if bool(unknown.any()):
            values = labels[unknown].unique().tolist()
            raise ValueError(
                f"labels {values[:8]} are neither a class (0..{self.mixture.num_classes - 1}) "
                f"nor IGNORE ({IGNORE})"
            )


def make_memory(mixture: ClassMixture, settings: EMSettings) -> Memory:
    """An empty memory of the settings' kind for this mixture, on its device."""
    c, k, d = mixture.means.shape
    device = mixture.means.device
    if settings.memory == "statistics":
        return DecayedStatistics(c, k, d, decay=settings.decay, device=device)
    dtype = torch.float16 if settings.memory_float16 else torch.float32
    return FeatureQueue(c, k, d, capacity=settings.memory_size, dtype=dtype, device=device)


def _first_per_component(responsibilities: Tensor, most: int) -> Tensor:
    """Keep the first ``most`` points (p m k) whose largest share is a given component; they come shuffled."""
    present = responsibilities.sum(-1, keepdim=True) > 0
    winners = (
        torch.zeros_like(responsibilities).scatter_(-1, responsibilities.argmax(-1, keepdim=True), 1.0)
        * present
    )
    rank = (winners.cumsum(1) * winners).sum(-1, keepdim=True)
    return responsibilities * (rank <= most)
