"""How features become points, and what that asks of the mixtures: one small class for each way.

The mixture owns one of these objects. The head asks it for points, EM for what keeps means valid and for what
must be followed while the network learns.
"""

import math
from typing import ClassVar, Protocol, TypedDict, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.mixture.memory import accumulator_dtype
from gmmseg.mixture.products import RowProduct, product

LEAST_VARIANCE = 1e-6
"""Least mean variance within classes that is believed: a batch of single points shows none at all."""
LENGTH_TOLERANCE = 0.01
"""How far from one the length of a point on the sphere may be; bfloat16 rounds by less than half of it."""


class FollowerState(TypedDict, total=False):
    """What a follower has learned; empty where coordinates do not change."""

    batches: int
    centre: Tensor
    covariance: Tensor


class Follower(Protocol):
    """What EM moves beside the mixtures, so that coordinates follow the features of a learning network."""

    def follow_(
        self, points: Tensor, labels: Tensor, class_weights: Tensor, forgetting_scale: float
    ) -> Tensor:
        """Learn from points (n d) with labels (n), update the coordinates, return the points in new ones.

        ``class_weights`` (c): how much each class counts. ``forgetting_scale``: share of the usual rate at
        which earlier batches are forgotten.
        """

    def state_dict(self) -> FollowerState: ...

    def load_state_dict(self, state: FollowerState) -> None: ...


class Coordinates(nn.Module):
    """Features (n feature_channels) -> points (n dim). Each subclass is one way.

    ``needs_em``: only EM can fit these coordinates. ``removes_offset``: a constant added to all features
    changes no point once EM has followed it, so a projection before them needs no bias. ``unit_length``:
    points have length one.
    """

    name: ClassVar[str]
    needs_em: ClassVar[bool] = False
    removes_offset: ClassVar[bool] = False
    extra_channels: ClassVar[int] = 0
    unit_length: ClassVar[bool] = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim <= self.extra_channels:
            raise ValueError(
                f"{self.name} coordinates need dim at least {self.extra_channels + 1}, got {dim}: "
                "one of the channels is the pole's"
            )
        self.dim = dim

    @property
    def feature_channels(self) -> int:
        """How many channels a feature has."""
        return self.dim - self.extra_channels

    def forward(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        """Points (n dim) of features (n feature_channels).

        ``projection``: a module that makes such features of (n f); then ``features`` are (n f).
        """
        return self.place(features if projection is None else projection(features))

    def place(self, features: Tensor) -> Tensor:
        """Points (n dim) of features (n feature_channels)."""
        raise NotImplementedError

    def affine(self, projection: nn.Linear | None = None) -> tuple[Tensor, Tensor] | None:
        """Matrix (dim f) and shift (dim) that make points of features (n f), up to their length.

        ``projection`` included, if there is one before the coordinates. None: features are taken as they are.
        """
        return None if projection is None else _affine_of(projection)

    def valid_means(self, means: Tensor) -> Tensor:
        """Means (... dim) moved to where points can lie."""
        return means

    def check(self, points: Tensor) -> None:
        """Raise ValueError if points (n dim) cannot have come from these coordinates."""

    def follower(self, *, decay: float, shrinkage: float) -> Follower:
        """A new object with which EM keeps these coordinates up to date.

        ``decay``: what a batch leaves of earlier covariances. ``shrinkage``: share of the mean variance added
        in all directions. Both matter to whitened coordinates alone.
        """
        return FixedCoordinates()


class Plain(Coordinates):
    """The features are the points."""

    name = "plain"

    def place(self, features: Tensor) -> Tensor:
        return features


class Sphere(Coordinates):
    """Features scaled to unit length. Means have unit length too."""

    name = "sphere"
    unit_length = True

    def place(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1)

    def valid_means(self, means: Tensor) -> Tensor:
        return F.normalize(means, dim=-1)

    def check(self, points: Tensor) -> None:
        if bool(self._is_elsewhere(points).any()):
            raise ValueError(
                f"these are not points of {self.name} coordinates: make them of features with the "
                "mixture's `points`"
            )

    def _is_elsewhere(self, points: Tensor) -> Tensor:
        """Which points (n) bool do not lie where these coordinates put them."""
        lengths = points.float().norm(dim=-1)
        # A feature of zeros has no direction and stays zero; what is not finite has an error of its own.
        return ((lengths - 1.0).abs() > LENGTH_TOLERANCE) & (lengths > 0) & lengths.isfinite()


class Pole(Sphere):
    """Features with one coordinate more, the same for all, then unit length: see `on_sphere`."""

    name = "pole"
    extra_channels = 1

    def place(self, features: Tensor) -> Tensor:
        return on_sphere(features)

    def affine(self, projection: nn.Linear | None = None) -> tuple[Tensor, Tensor]:
        if projection is not None:
            return _with_pole(*_affine_of(projection))
        return _with_pole(torch.eye(self.feature_channels), torch.zeros(self.feature_channels))

    def _is_elsewhere(self, points: Tensor) -> Tensor:
        return super()._is_elsewhere(points) | (points[:, -1] <= 0)


class WhitenedSphere(Pole):
    """Features whitened by the covariance within classes, then placed on the sphere as `Pole` does.

    The nearest mean is the best guess only where the covariance of each class is about the same in all
    directions. Linear discriminant analysis therefore divides by the covariance within classes first. So does
    this, for features that change while the network learns.

    Two buffers, ``centre`` (d-1) and ``basis`` (d-1 d-1), which EM moves and no gradient reaches.
    """

    name = "whitened"
    needs_em = True
    removes_offset = True
    centre: Tensor
    basis: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.register_buffer("centre", torch.zeros(dim - 1))
        self.register_buffer("basis", torch.eye(dim - 1))

    def forward(self, features: Tensor, projection: nn.Module | None = None) -> Tensor:
        """Points (n dim), float32, of features (n dim-1), or of (n f) with a ``projection``.

        A linear projection, the whitening and the pole are one product over the points, at the precision of
        the caller's loop.
        """
        if not _is_linear(projection):
            return super().forward(features, projection)
        with torch.autocast(features.device.type, enabled=False):
            matrix, bias = self.affine(projection)
        return F.normalize(product(features.float(), matrix, bias).float(), dim=-1)

    def place(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            return F.normalize(product(features.float(), *self.affine()), dim=-1)

    def affine(self, projection: nn.Linear | None = None) -> tuple[Tensor, Tensor]:
        basis, shift = self._affine()
        if projection is None:
            return _with_pole(basis.T, shift)
        if projection.bias is not None:
            shift = shift + projection.bias.float() @ basis
        return _with_pole(basis.T @ projection.weight.float(), shift)

    def _affine(self) -> tuple[Tensor, Tensor]:
        """Basis (d-1 d-1) and shift (d-1): a feature x is whitened to x @ basis + shift."""
        # A copy, because EM may move the basis before the backward pass needs it.
        basis = self.basis.float().clone()
        return basis, -(self.centre.float() @ basis)

    def features(self, points: Tensor) -> Tensor:
        """The features (n d-1) of which these coordinates have made these points (n d)."""
        inverse = torch.linalg.inv(self.basis.cpu().double()).to(points)
        return from_sphere(points) @ inverse + self.centre

    @torch.no_grad()
    def whiten_(self, within: "WithinClassCovariance", shrinkage: float) -> None:
        """Take the basis in which the covariance ``within`` is the identity, but for ``shrinkage``."""
        self.centre.copy_(within.centre)
        self.basis.copy_(_inverse_root(within.covariance, shrinkage))

    @torch.no_grad()
    def whiten_channels_(self, centre: Tensor, covariance: Tensor, shrinkage: float) -> None:
        """Scale each channel by its own deviation, then whiten the correlations; given (d-1) and (d-1 d-1).

        For channels of very different scales, where ``shrinkage`` of the mean variance would drown the small.
        """
        matrix = covariance.cpu().double()
        variances = matrix.diagonal()
        deviations = (variances + LEAST_VARIANCE * variances.mean().clamp_min(LEAST_VARIANCE)).sqrt()
        correlations = matrix / torch.outer(deviations, deviations)
        self.centre.copy_(centre)
        self.basis.copy_(_inverse_root(correlations, shrinkage) / deviations[:, None])

    def follower(self, *, decay: float, shrinkage: float) -> "CovarianceFollower":
        return CovarianceFollower(self, decay=decay, shrinkage=shrinkage)


COORDINATES = {kind.name: kind for kind in (Plain, Sphere, Pole, WhitenedSphere)}


def make_coordinates(name: str, dim: int) -> Coordinates:
    """The coordinates called ``name`` (plain, sphere, pole or whitened) for points with ``dim`` channels."""
    if name not in COORDINATES:
        raise ValueError(f"unknown coordinates {name!r}: choose {', '.join(COORDINATES)}")
    return COORDINATES[name](dim)


class FixedCoordinates:
    """The follower of coordinates that do not change: points come back as they are."""

    def follow_(
        self, points: Tensor, labels: Tensor, class_weights: Tensor, forgetting_scale: float
    ) -> Tensor:
        return points

    def state_dict(self) -> FollowerState:
        return {}

    def load_state_dict(self, state: FollowerState) -> None:
        """Nothing is kept, so there is nothing to load."""


class CovarianceFollower:
    """The follower of whitened coordinates: it estimates the covariance within classes and whitens by it."""

    def __init__(self, coordinates: WhitenedSphere, *, decay: float, shrinkage: float) -> None:
        self.coordinates, self.shrinkage = coordinates, shrinkage
        self.within = WithinClassCovariance(coordinates.dim, decay=decay, device=coordinates.basis.device)

    def follow_(
        self, points: Tensor, labels: Tensor, class_weights: Tensor, forgetting_scale: float
    ) -> Tensor:
        features = self.coordinates.features(points)
        self.within.update(features, labels, class_weights, forgetting_scale)
        self.coordinates.whiten_(self.within, self.shrinkage)
        return self.coordinates(features)

    def state_dict(self) -> FollowerState:
        return self.within.state_dict()

    def load_state_dict(self, state: FollowerState) -> None:
        self.within.load_state_dict(state)


class WithinClassCovariance:
    """Running estimate of the ``centre`` (d-1) of features and their ``covariance`` (d-1 d-1) within classes.

    Each batch adds its own estimate and leaves ``decay`` of the earlier one. No batch counts for less than
    its share of all batches so far: the first ones are averaged, and all of them where nothing is forgotten.
    """

    def __init__(self, dim: int, *, decay: float, device: torch.device | str = "cpu") -> None:
        dtype = accumulator_dtype(torch.device(device))
        self.decay, self.batches = decay, 0
        self.centre = torch.zeros(dim - 1, dtype=dtype, device=device)
        self.covariance = torch.eye(dim - 1, dtype=dtype, device=device)

    def update(
        self, features: Tensor, labels: Tensor, class_weights: Tensor, forgetting_scale: float = 1.0
    ) -> None:
        """Add a batch of features (n d-1) with labels (n); class c counts by ``class_weights`` (c).

        A class with a single point shows no covariance and is left out. ``forgetting_scale``: share of the
        usual rate at which earlier batches are forgotten.
        """
        counts = torch.bincount(labels, minlength=len(class_weights))
        weight = torch.where(counts > 1, class_weights, 0.0)
        if not bool(weight.any()):
            return
        share = weight / weight.sum() / counts.clamp_min(1)  # of each point of a class, (c)
        totals = features.new_zeros(len(weight), features.shape[1]).index_add_(0, labels, features)
        unbiased = share * counts / (counts - 1).clamp_min(1)
        offsets = features - (totals / counts.clamp_min(1)[:, None])[labels]
        offsets = offsets * unbiased.sqrt()[labels, None]
        self.batches += 1
        rate = max((1.0 - self.decay) * forgetting_scale, 1.0 / self.batches)
        self.centre.lerp_((share[:, None] * totals).sum(0).to(self.centre), rate)
        self.covariance.lerp_((offsets.T @ offsets).to(self.covariance), rate)

    def state_dict(self) -> FollowerState:
        return {"batches": self.batches, "centre": self.centre.clone(), "covariance": self.covariance.clone()}

    def load_state_dict(self, state: FollowerState) -> None:
        self.batches = state["batches"]
        self.centre.copy_(state["centre"])
        self.covariance.copy_(state["covariance"])


def on_sphere(rows: Tensor) -> Tensor:
    """Rows (... d-1) -> unit vectors (... d): one coordinate more, the same for all, then unit length.

    Plain unit length loses how long a row was, and the length of a feature says how sure the network is.
    Here short rows lie near the pole, where no class is, and long ones near the equator.
    """
    height = rows.new_full((*rows.shape[:-1], 1), _pole(rows.shape[-1] + 1))
    return F.normalize(torch.cat([rows, height], dim=-1), dim=-1)


def from_sphere(points: Tensor) -> Tensor:
    """The rows (... d-1) of which `on_sphere` has made these points (... d)."""
    return points[..., :-1] * (_pole(points.shape[-1]) / points[..., -1:])


def _with_pole(matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """An affine map to (n d-1), matrix (d-1 f) and shift (d-1), with the pole as one output more."""
    return F.pad(matrix, (0, 0, 0, 1)), F.pad(shift, (0, 1), value=_pole(len(shift) + 1))


def _is_linear(projection: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether this is a linear layer and nothing more: others that inherit from it may do other things."""
    return type(projection) in (nn.Linear, RowProduct)


def _affine_of(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Matrix (out in) and shift (out) of a linear layer, float32."""
    matrix = linear.weight.float()
    return matrix, matrix.new_zeros(len(matrix)) if linear.bias is None else linear.bias.float()


def _pole(dim: int) -> float:
    """The coordinate that all points (n dim) have in common before unit length: as long as a typical one."""
    return math.sqrt(dim)


def _inverse_root(covariance: Tensor, shrinkage: float) -> Tensor:
    """(covariance + shrinkage * its mean variance) ^ (-1/2), symmetric: the whitening nearest to none."""
    matrix = covariance.cpu().double()  # a small matrix: quickest there, and in double precision everywhere
    ridge = shrinkage * matrix.diagonal().mean().clamp_min(LEAST_VARIANCE)
    values, vectors = torch.linalg.eigh(matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype))
    return (vectors * values.clamp_min(ridge).rsqrt()) @ vectors.T
