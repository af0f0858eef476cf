"""EM as an optimizer: stepped beside AdamW, it moves the mixtures, and nothing else does."""

import math
from typing import NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor

from gmmseg.distributed import gather_rows, rows_before, sum_over_processes
from gmmseg.labels import IGNORE
from gmmseg.mixture.class_batch import ClassBatch, ClassLayout
from gmmseg.mixture.coordinates import FollowerState
from gmmseg.mixture.em_settings import DEFAULT, EMSettings
from gmmseg.mixture.gaussian import own_log_density
from gmmseg.mixture.memory import DecayedStatistics, FeatureQueue, Memory, Moments, accumulator_dtype
from gmmseg.mixture.mixture import ClassMixture
from gmmseg.mixture.sampling import evenly_spaced, sample_points
from gmmseg.mixture.steps import assign, estimated_log_weights, expect, maximise

COLLAPSED = 0.1
"""Two components of a class closer than this many standard deviations are one component twice."""
LARGEST_POINT = 1e15
"""Coordinates from here on are a network that has diverged: their squares, over a variance, overflow."""
STARVED = 0.1
"""A component with less than this share of an even split is out of use."""


class _Chosen(NamedTuple):
    """Points (s d) and labels (s) that a step uses, sorted by label; shares (s k) if assigned already."""

    points: Tensor
    labels: Tensor
    shares: Tensor | None = None


class Diagnostics(TypedDict):
    """The health of a mixture as plain numbers; `OnlineEM.diagnostics` says what they mean."""

    occupancy: float
    separation: float
    fill: float
    collapsed: int
    starved: int
    unseen: list[int]
    log_likelihood: float


class EMState(TypedDict):
    """What `OnlineEM.step` needs to continue exactly."""

    steps: int
    seed: int
    updates: Tensor
    labels_seen: Tensor
    log_likelihood: Tensor
    memory: dict[str, Tensor]
    follower: FollowerState
    spread: NotRequired[FollowerState]
    """Where earlier versions wrote what is now under ``follower``."""


class OnlineEM:
    """One `step` per optimizer step: sample, assign (E), update (M), remember; never any gradient.

    Under torch.distributed every process ends with the same mixture, and the result does not depend on
    how the same global batch is split over processes.
    """

    def __init__(self, mixture: ClassMixture, settings: EMSettings = DEFAULT, *, seed: int = 0) -> None:
        mixture.refuse_em()
        self.mixture = mixture
        self.settings = settings
        self.seed = seed
        self.memory = make_memory(mixture, settings)
        self.follower = mixture.coordinates.follower(
            decay=settings.covariance_decay, shrinkage=settings.covariance_shrinkage
        )
        device, shape = mixture.means.device, mixture.means.shape[:2]
        self.steps = 0
        self.updates = torch.zeros(shape, dtype=torch.int64, device=device)
        self.labels_seen = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.log_likelihood = torch.tensor(float("nan"), device=device)

    @torch.no_grad()
    def step(
        self,
        points: Tensor,
        labels: Tensor,
        groups: Tensor | None = None,
        correct: Tensor | None = None,
        *,
        forgetting_scale: float = 1.0,
    ) -> None:
        """One EM iteration on points (n d) with labels (n; IGNORE is left out) from images ``groups`` (n).

        The points must be fresh: made by `ClassMixture.points` since the last step. ``correct`` (n) bool:
        which points the head classifies correctly, for `EMSettings.correct_only`; None asks the mixtures.
        ``forgetting_scale``: how fast the network still moves, as a share of its fastest. With
        `EMSettings.anneal` what is known is forgotten at that share of the usual rate.
        """
        self._check(points, labels, forgetting_scale)
        self.steps += 1
        counts = self._count_labels(labels)
        chosen = self._choose(points.float(), labels, groups, correct)
        if len(chosen.labels) == 0:
            return
        # Squares of points are summed below: what has none that float32 can hold is no better than NaN.
        if not bool(chosen.points.abs().amax() < LARGEST_POINT):
            raise FloatingPointError(
                "points are not finite, or too large: the network has diverged; the mixture is unchanged"
            )
        self._learn_(chosen, counts, forgetting_scale if self.settings.anneal else 1.0)

    def _learn_(self, chosen: "_Chosen", counts: Tensor, forgetting_scale: float) -> None:
        """Move coordinates and mixtures by the chosen points; ``counts`` (c): labels in the global batch."""
        # Coordinates first: components that start where all points lie together stay alike. The mixtures
        # are then fitted to the points as the next pass will see them.
        # Classes weigh by the root of their count, between one vote per class and one per pixel.
        points = self.follower.follow_(chosen.points, chosen.labels, counts.sqrt(), forgetting_scale)
        batch = ClassBatch(points, chosen.labels)
        given = None
        if chosen.shares is not None:
            given = batch.layout.pad(chosen.shares) * batch.valid[..., None]
        self.memory.fade_(batch.classes, forgetting_scale * self._forgetting_shares(batch))
        if self.settings.batch_in_update:
            self._step_with_batch(batch, given)
        else:
            self._step_from_memory(batch, given)
        if self.settings.reseed:
            self._reseed_(batch)

    def _forgetting_shares(self, batch: ClassBatch) -> Tensor:
        """What each class of the batch forgets, as a share (p) of a class with ``decay_points`` points."""
        counts = batch.valid.sum(1).to(accumulator_dtype(batch.valid.device))
        enough = self.settings.decay_points
        return torch.ones_like(counts) if enough is None else (counts / enough).clamp_max(1.0)

    # Which points --------------------------------------------------------------------------------------

    def _choose(
        self, points: Tensor, labels: Tensor, groups: Tensor | None, correct: Tensor | None
    ) -> "_Chosen":
        """The points that this step uses, of all processes, as the settings say."""
        if self.settings.correct_only and correct is None:
            correct = self._is_correct(points, labels)
        if self.settings.samples_per_component is None:
            return self._sample(points, labels, groups, correct)
        return self._spaced(points, labels, correct)

    def _sample(
        self, points: Tensor, labels: Tensor, groups: Tensor | None, correct: Tensor | None
    ) -> "_Chosen":
        """At most ``samples_per_class`` of each class from each image, of all processes."""
        if self.settings.correct_only and correct is not None:
            labels = torch.where(correct, labels, IGNORE)
        sampled, sampled_labels = sample_points(
            points,
            labels,
            torch.zeros_like(labels) if groups is None else groups,
            num_classes=self.mixture.num_classes,
            per_group=self.settings.samples_per_class,
            seed=self.seed * 1_000_003 + self.steps,
        )
        return _Chosen(sampled, sampled_labels)

    def _spaced(self, points: Tensor, labels: Tensor, correct: Tensor | None) -> "_Chosen":
        """At most ``samples_per_component`` of each component, of all processes, with their shares."""
        assert self.settings.samples_per_component is not None
        shares = self.responsibilities(points, labels)
        usable = shares.sum(-1) > 0
        if self.settings.correct_only and correct is not None:
            usable = usable & correct
        index = usable.nonzero().squeeze(1)
        cells = labels[index] * self.mixture.num_components + shares[index].argmax(-1)
        kept = evenly_spaced(gather_rows(cells), self.settings.samples_per_component)
        first = rows_before(len(index))
        index = index[kept[first : first + len(index)]]
        points, labels, shares = (gather_rows(each[index]) for each in (points, labels, shares))
        order = labels.argsort(stable=True)
        return _Chosen(points[order], labels[order], shares[order])

    def _is_correct(self, points: Tensor, labels: Tensor) -> Tensor:
        """Which points (n) the mixtures give to their own class."""
        return (self.mixture(points) + self.mixture.log_prior).argmax(-1) == labels

    # The E-step ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def responsibilities(self, points: Tensor, labels: Tensor) -> Tensor:
        """How much of each point (n d) belongs to each component of its class labels (n), (n k).

        Rows sum to one, or are zero where the label is no class. Balance is over the points of all
        processes, between which only k densities a point travel.
        """
        known = (labels >= 0) & (labels < self.mixture.num_classes)
        classes = labels[known]
        densities = own_log_density(points[known], classes, self.mixture.means, self.mixture.variances)
        everyone, all_classes = gather_rows(densities), gather_rows(classes)
        result = densities.new_zeros(len(points), self.mixture.num_components)
        if len(all_classes):
            order = all_classes.argsort(stable=True)
            layout = ClassLayout(all_classes[order])
            log_weights = self.mixture.log_weights[layout.classes]
            assigned = assign(layout.pad(everyone[order]), layout.valid, log_weights, self.settings)
            everyone = torch.empty_like(everyone).index_copy_(0, order, layout.unpad(assigned))
            first = rows_before(len(classes))
            result[known] = everyone[first : first + len(classes)]
        return result

    def _expect(self, batch: ClassBatch, given: Tensor | None = None) -> Tensor:
        """Responsibilities (p m k) of the batch's points, ``given`` or found; notes their log-likelihood."""
        found = expect(self.mixture, batch, self.settings, given)
        self.log_likelihood = found.log_likelihoods.mean()
        return found.responsibilities

    # The M-step ----------------------------------------------------------------------------------------

    def _is_update(self) -> bool:
        return (self.steps - 1) % self.settings.update_every == 0

    def _step_with_batch(self, batch: ClassBatch, given: Tensor | None) -> None:
        """The paper's schedule: E and M over memory and batch, ``loops`` times, then remember the batch.

        ``given``: responsibilities (p m k) of the first E-step, where it is done already.
        """
        classes = batch.classes
        remembered = self.memory.recall(classes)
        # Without a memory the last batch's arrivals are known, for its diagnostics, but not remembered.
        arrived = self.memory.arrived()[classes] * (remembered.weight.sum(1, keepdim=True) > 0)
        for loop in range(self.settings.loops if self._is_update() else 1):
            responsibilities = self._expect(batch, None if loop else given)
            gained = batch.moments(responsibilities)
            if self._is_update():
                self._update_(classes, remembered + gained, arrived + gained.weight)
        self.memory.write(classes, batch.points, responsibilities, gained)

    def _step_from_memory(self, batch: ClassBatch, given: Tensor | None) -> None:
        """The reference's schedule: assign and remember the batch; every so often update from memory, the
        classes of the batch alone."""
        classes = batch.classes
        responsibilities = self._expect(batch, given)
        self.memory.write(classes, batch.points, responsibilities, batch.moments(responsibilities))
        if self._is_update():
            self._update_(classes, self.memory.recall(classes), self.memory.arrived()[classes])

    def _update_(self, classes: Tensor, known: Moments, arrived: Tensor) -> None:
        """Move the mixtures of these classes towards what is known of them."""
        mixture = self.mixture
        means, variances = maximise(
            known,
            mixture.means[classes],
            mixture.variances[classes],
            mixture.coordinates,
            variance_floor=self._variance_floor(),
            variance_offset=self.settings.variance_offset,
        )
        self.updates[classes] += known.weight > 0
        mean_rate = self._rate(self.settings.mean_momentum, classes)
        variance_rate = self._rate(self.settings.variance_momentum, classes)
        mixture.means[classes] = mixture.coordinates.valid_means(
            torch.lerp(mixture.means[classes], means, mean_rate)
        )
        mixture.variances[classes] = torch.lerp(mixture.variances[classes], variances, variance_rate)
        if not self.settings.balanced:  # where it is, components are even by definition
            old = mixture.log_weights[classes]
            new = estimated_log_weights(arrived, old)
            mixture.log_weights[classes] = torch.lerp(old.exp(), new.exp(), mean_rate[..., 0]).log()
        if self.settings.estimate_prior:
            counts = self.labels_seen + 1.0  # one of each, so none is impossible
            mixture.log_prior.copy_((counts / counts.sum()).log())

    def _variance_floor(self) -> float:
        relative = self.settings.relative_floor * float(self.mixture.variances.mean())
        return max(self.settings.variance_floor, relative)

    def _rate(self, momentum: float, classes: Tensor) -> Tensor:
        """How far to move towards the update, (p k 1)."""
        kept = torch.full_like(self.mixture.means[classes][..., :1], momentum)
        if self.settings.warm_momentum:
            kept = kept.minimum(1.0 - 1.0 / self.updates[classes].clamp_min(1)[..., None])
        return 1.0 - kept

    # Health --------------------------------------------------------------------------------------------

    def _reseed_(self, batch: ClassBatch) -> None:
        """Put each collapsed or starved component of the classes present on a fresh point of its class."""
        classes, k = batch.classes, self.mixture.num_components
        broken = self._broken()[classes] & (batch.valid.sum(1) >= k)[:, None]
        # Points of a class come in random order, so the first k serve as fresh places.
        fresh = batch.points[:, :k] if batch.points.shape[1] >= k else batch.points[:, :1].expand(-1, k, -1)
        mixture = self.mixture
        mixture.means[classes] = torch.where(broken[..., None], fresh, mixture.means[classes])
        typical = mixture.variances[classes].mean(1, keepdim=True)
        mixture.variances[classes] = torch.where(broken[..., None], typical, mixture.variances[classes])
        even = -math.log(k)  # a component out of use has almost no weight and would keep it
        weights = torch.where(broken, even, mixture.log_weights[classes])
        mixture.log_weights[classes] = weights.log_softmax(-1)
        marked = torch.zeros_like(self.updates, dtype=torch.bool)
        marked[classes] = broken
        self.memory.forget_(marked)
        self.updates[marked] = 0

    def _broken(self) -> Tensor:
        """Components (c k) that are starved, or repeat an earlier sibling."""
        arrived = self.memory.arrived()
        starved = arrived * self.mixture.num_components < STARVED * arrived.sum(1, keepdim=True)
        repeats = (self._distances() < COLLAPSED).tril(-1).any(-1)
        return starved | repeats

    def _distances(self) -> Tensor:
        """Distances between the components of each class (c k k), in standard deviations; inf to itself."""
        means, variance = self.mixture.means, self.mixture.variances.mean(dim=(1, 2))
        distances = torch.cdist(means, means) / (variance.sqrt()[:, None, None] * means.shape[-1] ** 0.5)
        return distances + torch.diag(torch.full_like(means[0, :, 0], torch.inf))

    @torch.no_grad()
    def diagnostics(self) -> Diagnostics:
        """The health of the mixture as plain numbers.

        ``occupancy``: least share of its class's points that any component was given, times k (1 = even),
        as far back as the memory reaches;
        ``separation``: least distance between two components of a class, in standard deviations;
        ``fill``: mean fill of the queue, or points behind a component for statistics;
        ``collapsed`` and ``starved``: how many components; ``unseen``: ids of classes never seen;
        ``log_likelihood``: mean over the last step's points under their own class.
        """
        weight, arrived, distances = self.memory.weight(), self.memory.arrived(), self._distances()
        seen = arrived.sum(1) > 0
        shares = arrived[seen] * self.mixture.num_components / arrived[seen].sum(1, keepdim=True)
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

    def state_dict(self) -> EMState:
        """Everything `step` needs to continue exactly; the mixture itself is saved with the model."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "updates": self.updates.clone(),
            "labels_seen": self.labels_seen.clone(),
            "log_likelihood": self.log_likelihood.clone(),
            "memory": self.memory.state_dict(),
            "follower": self.follower.state_dict(),
        }

    def load_state_dict(self, state: EMState) -> None:
        if state["updates"].shape != self.updates.shape:
            raise ValueError(
                f"the saved EM state is of {tuple(state['updates'].shape)} (classes, components), "
                f"the mixture has {tuple(self.updates.shape)}"
            )
        self.memory.load_state_dict(state["memory"])
        # Earlier versions wrote it under the name spread.
        self.follower.load_state_dict(state["follower"] if "follower" in state else state["spread"])
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

    def _check(self, points: Tensor, labels: Tensor, forgetting_scale: float) -> None:
        if not 0.0 <= forgetting_scale <= 1.0:
            raise ValueError(f"forgetting_scale must lie in [0, 1], got {forgetting_scale}")
        self.mixture.check(points, labels)
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
    try:
        return FeatureQueue(c, k, d, capacity=settings.memory_size, dtype=dtype, device=device)
    except RuntimeError as error:  # what torch's allocators raise
        size = c * k * settings.memory_size * d * dtype.itemsize / 2**30
        raise ValueError(
            f"em.memory_size={settings.memory_size} takes {size:,.1f} GiB for {c} x {k} components of {d} "
            "dimensions, more than there is: make it smaller, or keep moments only (em.memory=statistics)"
        ) from error
