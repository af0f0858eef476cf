"""Classifiers on features: the generative head and its honest twin, a softmax classifier."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.bounds import Count, Positive, check_bounds
from gmmseg.mixture import ClassMixture, DiscriminativeMixture, make_link
from gmmseg.mixture.whitening import on_sphere
from gmmseg.models.outputs import SegmenterOutput


@dataclass(frozen=True)
class HeadSettings:
    """What kind of head to put on a network; plain data, so that it can be stored beside the weights.

    ``kind``: gmm or softmax; the rest concerns gmm alone. ``components`` and ``dim`` size the mixtures,
    ``projection`` (none, linear, l2, whitened, pole, reference) makes points of features, ``link`` (bayes,
    class_norm, affine) makes class scores of evidence, ``temperature`` is where the affine link starts,
    ``winner`` takes the best component as the class evidence instead of the exact sum, ``discriminative``
    trains the mixtures by gradient (an ablation).
    """

    kind: Literal["gmm", "softmax"] = "gmm"
    components: Count = 5
    dim: Count = 64
    projection: Literal["none", "linear", "l2", "whitened", "pole", "reference"] = "whitened"
    link: Literal["bayes", "class_norm", "affine"] = "affine"
    temperature: Positive = 0.3
    winner: bool = False
    discriminative: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.discriminative and self.projection == "whitened":
            raise ValueError("only EM whitens points, and a discriminative mixture has none: choose pole")
        if self.dim < 2 and self.projection in ("whitened", "pole"):
            raise ValueError(f"dim must be at least 2 with the projection {self.projection}, got {self.dim}")


HEAD_PRESETS = {
    "paper": HeadSettings(projection="linear", link="bayes", winner=True),
    "reference": HeadSettings(projection="reference", link="class_norm", winner=True),
    "default": HeadSettings(),
    "softmax": HeadSettings(kind="softmax"),
}


def head_settings(head: "str | HeadSettings") -> HeadSettings:
    """The settings a name stands for: paper, reference, default (also called gmm) or softmax."""
    if isinstance(head, HeadSettings):
        return head
    name = "default" if head == "gmm" else head
    if name not in HEAD_PRESETS:
        raise ValueError(f"unknown head {head!r}: choose gmm, {', '.join(HEAD_PRESETS)} or give HeadSettings")
    return HEAD_PRESETS[name]


class OnSphere(nn.Module):
    """Rows (n d-1) -> points (n d) on the unit sphere; see `on_sphere`."""

    def forward(self, rows: Tensor) -> Tensor:
        return on_sphere(rows)


class UnitNorm(nn.Module):
    """Points (n d) scaled to unit length."""

    def forward(self, points: Tensor) -> Tensor:
        return F.normalize(points, dim=-1)


UNIT_LENGTH = ("l2", "whitened", "pole", "reference")
"""Projections whose points are of unit length."""


def make_projection(name: str, in_channels: int, dim: int) -> nn.Module:
    """Features (n f) -> what `ClassMixture.points` takes, a 1x1 convolution written for rows.

    ``none``: the features are the points (post-hoc mixtures). ``linear``: nothing more (the paper). ``l2``:
    then unit length. ``whitened``: to (n d-1), the rest is the mixture's. ``pole``: the same with batch norm
    in place of whitening. ``reference``: then batch norm, ReLU, LayerNorm and unit length.
    """
    if name == "none":
        if in_channels != dim:
            raise ValueError(
                f"without a projection points have the features' {in_channels} channels, not {dim}"
            )
        return nn.Identity()
    if name == "linear":
        return nn.Linear(in_channels, dim)
    if name == "l2":
        return nn.Sequential(nn.Linear(in_channels, dim), UnitNorm())
    if name == "pole":
        linear = nn.Linear(in_channels, dim - 1, bias=False)
        return nn.Sequential(linear, nn.BatchNorm1d(dim - 1), OnSphere())
    if name == "whitened":
        return nn.Linear(in_channels, dim - 1, bias=False)
    if name == "reference":
        linear = nn.Linear(in_channels, dim, bias=False)
        return nn.Sequential(
            linear, nn.BatchNorm1d(dim), nn.ReLU(inplace=True), nn.LayerNorm(dim), UnitNorm()
        )
    raise ValueError(f"unknown projection {name!r}: choose none, linear, l2, whitened, pole or reference")


class GMMHead(nn.Module):
    """features -> points -> log densities -> evidence -> logits. Pure: no forward pass moves the mixtures."""

    def __init__(
        self,
        in_channels: int,
        mixture: ClassMixture,
        *,
        projection: str = "linear",
        link: str = "bayes",
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if (projection == "whitened") != (mixture.whitening is not None):
            raise ValueError("a whitened projection and a whitened mixture need each other: make both so")
        if (projection in UNIT_LENGTH) != mixture.unit_means:
            raise ValueError(
                f"points of the projection {projection!r} need a mixture with "
                f"unit_means={projection in UNIT_LENGTH}: means lie where points do"
            )
        self.projection = make_projection(projection, in_channels, mixture.dim)
        self.mixture = mixture
        self.link = make_link(link, mixture.num_classes, temperature=temperature)

    @property
    def num_classes(self) -> int:
        return self.mixture.num_classes

    def classify(self, embeddings: Tensor) -> SegmenterOutput:
        """Embeddings (n f) -> logits (n c), points (n d), evidence (n c)."""
        points = self.mixture.points(embeddings, self.projection).float()
        evidence = self.mixture(points)
        logits = self.link(evidence, self.mixture.log_prior)
        return SegmenterOutput(logits, points, evidence, self.mixture)

    def forward(self, features: Tensor) -> SegmenterOutput:
        """Features (b f h w) -> the same three as maps, each (b ... h w).

        In channels_last the rows are a view of the features and the maps are views of the rows.
        """
        b, f, h, w = features.shape
        rows = self.classify(features.permute(0, 2, 3, 1).reshape(-1, f))
        return replace(
            rows,
            logits=_as_map(rows.logits, b, h, w),
            points=_as_map(rows.points, b, h, w),
            evidence=_as_map(rows.evidence, b, h, w),
        )


def _as_map(rows: Tensor | None, b: int, h: int, w: int) -> Tensor:
    """Rows (b*h*w ...) -> maps (b ... h w), a view."""
    assert rows is not None
    return rows.unflatten(0, (b, h, w)).movedim((1, 2), (-2, -1))


class SoftmaxHead(nn.Module):
    """The honest twin: one 1x1 convolution from features to logits.

    ``classifier`` replaces that convolution by one that exists already (of a converted network).
    """

    def __init__(self, in_channels: int, num_classes: int, classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.classifier = classifier if classifier is not None else nn.Conv2d(in_channels, num_classes, 1)

    def classify(self, embeddings: Tensor) -> SegmenterOutput:
        """Embeddings (n f) -> logits (n c); the points are the embeddings."""
        return SegmenterOutput(self.classifier(embeddings[:, :, None, None])[:, :, 0, 0], embeddings)

    def forward(self, features: Tensor) -> SegmenterOutput:
        """Features (b f h w) -> logits (b c h w); the points are the features."""
        return SegmenterOutput(self.classifier(features), features)


def make_head(settings: HeadSettings, in_channels: int, num_classes: int) -> GMMHead | SoftmaxHead:
    """The head that ``settings`` describe, for features with ``in_channels`` channels."""
    if settings.kind == "softmax":
        return SoftmaxHead(in_channels, num_classes)
    kind = DiscriminativeMixture if settings.discriminative else ClassMixture
    mixture = kind(
        num_classes,
        settings.components,
        settings.dim,
        winner=settings.winner,
        whitened=settings.projection == "whitened",
        unit_means=settings.projection in UNIT_LENGTH,
    )
    return GMMHead(
        in_channels,
        mixture,
        projection=settings.projection,
        link=settings.link,
        temperature=settings.temperature,
    )
