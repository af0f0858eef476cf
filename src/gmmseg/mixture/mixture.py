"""The state of the method: per class a mixture of diagonal Gaussians."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture import gaussian
from gmmseg.mixture.blocks import mixture_evidence, total_log_density
from gmmseg.mixture.coordinates import Coordinates, Plain
from gmmseg.mixture.post_hoc import fit_mixture

START_VARIANCE = 1.0


class Group(NamedTuple):
    """Classes that follow each other and came together, and how many of the component slots they use."""

    classes: int
    components: int


class ClassMixture(nn.Module):
    """Means and variances (c k d), component weights (c k) and a class prior (c), all buffers.

    No gradient ever reaches them: only EM (`OnlineEM.step`, or `fit`) moves the mixtures. ``coordinates``
    make points of features and say where means may lie; without any given, the features are the points.
    Densities are computed group by group: what one product makes of a class depends, in its last digits, on
    the classes beside it, so classes that are added later are a group of their own and change no old density.
    """

    moved_by_em: ClassVar[bool] = True
    means: Tensor
    variances: Tensor
    log_weights: Tensor
    log_prior: Tensor

    def __init__(
        self,
        num_classes: int,
        num_components: int,
        dim: int,
        *,
        winner: bool = True,
        coordinates: Coordinates | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(num_classes, num_components, dim) < 1:
            raise ValueError(
                "a mixture needs at least one class, component and channel, "
                f"got {num_classes}, {num_components}, {dim}"
            )
        self.winner = winner
        self.coordinates = Plain(dim) if coordinates is None else coordinates
        self._check_coordinates(dim)
        generator = torch.Generator().manual_seed(seed)
        means = torch.randn(num_classes, num_components, dim, generator=generator, device="cpu")
        # Unit vectors: the first balanced assignment needs directions to tell components apart, no more.
        self._hold("means", nn.functional.normalize(means, dim=-1))
        self._hold("variances", torch.full((num_classes, num_components, dim), START_VARIANCE))
        log_weight = -torch.tensor(float(num_components)).log()
        self.register_buffer("log_weights", log_weight.repeat(num_classes, num_components))
        self.register_buffer("log_prior", -torch.tensor(float(num_classes)).log().repeat(num_classes))
        self._groups: tuple[Group, ...] = (Group(num_classes, num_components),)

    def _check_coordinates(self, dim: int) -> None:
        if self.coordinates.dim != dim:
            raise ValueError(
                f"points of the coordinates have {self.coordinates.dim} channels, of the mixture {dim}: "
                "make both with the same dim"
            )
        if self.coordinates.needs_em and not self.moved_by_em:
            raise ValueError(
                f"only EM can fit {self.coordinates.name} coordinates, and a discriminative mixture has "
                "no EM: choose pole coordinates"
            )

    def _hold(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value)

    def refuse_em(self) -> None:
        """Raise ValueError if EM cannot move this mixture."""
        if not self.moved_by_em:
            raise ValueError("gradients train a discriminative mixture, EM does not: make a ClassMixture")

    def check(self, points: Tensor, labels: Tensor) -> None:
        """Raise ValueError if these are not points (n d) of this mixture's coordinates with labels (n)."""
        if points.ndim != 2 or points.shape[1] != self.dim or labels.shape != points.shape[:1]:
            raise ValueError(
                f"expected points (n {self.dim}) and labels (n), "
                f"got {tuple(points.shape)} and {tuple(labels.shape)}"
            )
        self.coordinates.check(points)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The classes, in their order, as they came; all of them in one group unless some were added."""
        return self._groups

    @groups.setter
    def groups(self, groups: Sequence[Group]) -> None:
        c, k = self.means.shape[:2]
        if sum(group.classes for group in groups) != c or max(group.components for group in groups) != k:
            raise ValueError(f"groups {[tuple(group) for group in groups]} of {c} classes, {k} components")
        if min(min(group) for group in groups) < 1:
            raise ValueError("each group has at least one class and one component")
        self._groups = tuple(groups)

    @property
    def num_classes(self) -> int:
        return self.means.shape[0]

    @property
    def num_components(self) -> int:
        return self.means.shape[1]

    @property
    def dim(self) -> int:
        return self.means.shape[2]

    @property
    def fitted(self) -> Tensor:
        """Which classes (c) bool have ever been fitted: a variance that is still exactly one never was."""
        return (self.variances != START_VARIANCE).flatten(1).any(1)

    def points(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        """Points (n d) of features (n coordinates.feature_channels).

        ``projection``: a module that makes such features of (n f); then ``features`` are (n f).
        """
        return self.coordinates(features, projection)

    def log_density(self, points: Tensor) -> Tensor:
        """log N(x; component) of points (n d) -> (n c k); -inf in slots that a class does not use."""
        parts = [gaussian.log_density(points, means, variances) for means, variances, _ in self._parts()]
        if len(parts) == 1:
            return parts[0]
        free = [self.num_components - part.shape[-1] for part in parts]
        return torch.cat([F.pad(part, (0, k), value=-torch.inf) for part, k in zip(parts, free)], dim=1)

    def evidence(self, log_densities: Tensor) -> Tensor:
        """log p(x given class), (n c), from log densities (n c k)."""
        return gaussian.class_evidence(log_densities, self.log_weights, winner=self.winner)

    def forward(self, points: Tensor) -> Tensor:
        """Evidence (n c) of points (n d), as ``winner`` says."""
        # A compiler has blocks of its own, and cannot tell how many of ours there will be.
        if self.means.requires_grad or torch.compiler.is_compiling():
            return self.evidence(self.log_density(points))
        parts = [mixture_evidence(points, *part, winner=self.winner) for part in self._parts()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _parts(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Means, variances (c' k' d) and log weights (c' k') of each group."""
        state = (self.means, self.variances, self.log_weights)
        if len(self.groups) == 1:
            return [state]
        ends = torch.tensor([group.classes for group in self.groups]).cumsum(0).tolist()
        rows = [slice(end - group.classes, end) for end, group in zip(ends, self.groups)]
        return [
            # Contiguous, as they were before the group had others beside it: sums over them round the same.
            (means.contiguous(), variances.contiguous(), log_weights.contiguous())
            for means, variances, log_weights in (
                tuple(each[place, : group.components] for each in state)
                for place, group in zip(rows, self.groups)
            )
        ]

    def component_log_density(self, points: Tensor, labels: Tensor, components: Tensor) -> Tensor:
        """log [pi N] of points (n d) under one component each, that of class labels (n) and number (n)."""
        number = labels * self.num_components + components
        means, variances = (each.flatten(0, 1)[:, None] for each in (self.means, self.variances))
        own = gaussian.own_log_density(points, number, means, variances)[:, 0]
        return own + self.log_weights.flatten()[number]

    def total(self, points: Tensor) -> Tensor:
        """Log of the sum over all classes and components, (n), of points (n d)."""
        if self.means.requires_grad:
            return (self.log_density(points) + self.log_weights).logsumexp(dim=(1, 2))
        parts = [total_log_density(points, *part) for part in self._parts()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)

    @torch.no_grad()
    def sample(self, class_index: int, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw points (n d) from the mixture of one class."""
        if not 0 <= class_index < self.num_classes:
            raise IndexError(f"class {class_index} of a mixture with {self.num_classes} classes")
        weights = self.log_weights[class_index].softmax(-1)
        component = torch.multinomial(weights, n, replacement=True, generator=generator)
        noise = torch.randn(n, self.dim, generator=generator, device=self.means.device)
        return self.means[class_index, component] + self.variances[class_index, component].sqrt() * noise

    def fit(
        self,
        points: Tensor | Iterable[tuple[Tensor, Tensor]],
        labels: Tensor | None = None,
        *,
        passes: int = 50,
        tolerance: float = 1e-4,
        balanced: bool = False,
        variance_floor: float = 1e-6,
        restart: bool = True,
        seed: int = 0,
    ) -> list[float]:
        """Post-hoc EM on points (n d) with labels (n); returns the mean log-likelihood at each pass.

        Instead of two tensors it takes batches, an iterable of such pairs. They are read once to start the
        components (unless ``restart`` is False) and once per pass, so they must be iterable more than once,
        a list or a loader, and need not fit in memory. Ends when the
        mean log-likelihood changes by less than ``tolerance`` nats, or after ``passes``.
        """
        batches = points if labels is None else [(points, labels)]
        return fit_mixture(
            self,
            batches,  # type: ignore[arg-type]
            passes=passes,
            tolerance=tolerance,
            balanced=balanced,
            variance_floor=variance_floor,
            restart=restart,
            seed=seed,
        )


class DiscriminativeMixture(ClassMixture):
    """The paper's counter-example: the same mixture, moved by gradient instead of by EM.

    ``means`` and ``log_variances`` (c k d) are parameters; ``variances`` follows from the latter. Coordinates
    that only EM can fit are refused.
    """

    moved_by_em = False

    def _hold(self, name: str, value: Tensor) -> None:
        if name == "means":
            self.means = nn.Parameter(value)
        else:
            self.log_variances = nn.Parameter(value.log())

    @property
    def variances(self) -> Tensor:  # type: ignore[override]
        return self.log_variances.exp()
