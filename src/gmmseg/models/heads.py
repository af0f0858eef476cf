"""Classifiers on features: the generative head and its honest twin, a softmax classifier."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from gmmseg.bounds import Count, Positive, check_bounds
from gmmseg.json_tree import JSON
from gmmseg.mixture import ClassMixture, DiscriminativeMixture, RowProduct, make_coordinates, make_link
from gmmseg.models.outputs import SegmenterOutput


@dataclass(frozen=True)
class HeadSettings:
    """What kind of head to put on a network; plain data, so that it can be stored beside the weights.

    ``kind``: gmm or softmax; the rest concerns gmm alone. ``components`` and ``dim`` size the mixtures,
    ``projection`` (none, linear, batch_norm, reference) makes features of the network's features,
    ``coordinates`` (plain, sphere, pole, whitened) make points of them, ``link`` (bayes, class_norm, affine)
    makes class scores of evidence, ``temperature`` is where the affine link starts, ``winner`` takes the best
    component as the class evidence instead of the exact sum, ``discriminative`` trains the mixtures by
    gradient (an ablation).
    """

    kind: Literal["gmm", "softmax"] = "gmm"
    components: Count = 5
    dim: Count = 64
    projection: Literal["none", "linear", "batch_norm", "reference"] = "linear"
    coordinates: Literal["plain", "sphere", "pole", "whitened"] = "whitened"
    link: Literal["bayes", "class_norm", "affine"] = "affine"
    temperature: Positive = 0.3
    winner: bool = False
    discriminative: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        _refuse_nonsense(self.projection, self.coordinates)
        if self.discriminative and self.coordinates == "whitened":
            raise ValueError(
                "only EM can fit whitened coordinates, and a discriminative mixture has no EM: "
                "choose coordinates pole"
            )
        if self.dim < 2 and self.coordinates in ("pole", "whitened"):
            raise ValueError(f"dim must be at least 2 with {self.coordinates} coordinates, got {self.dim}")


_NONSENSE = {
    ("batch_norm", "whitened"): "whitening undoes batch norm: choose projection linear, or coordinates pole",
    **{
        ("reference", coordinates): "features of the reference projection all have about the same length, "
        f"which {coordinates} coordinates are there to keep: choose coordinates sphere"
        for coordinates in ("pole", "whitened")
    },
}


def _refuse_nonsense(projection: str, coordinates: str) -> None:
    """ValueError, with the cure, for a projection and coordinates that make no sense together."""
    if (projection, coordinates) in _NONSENSE:
        raise ValueError(
            f"projection {projection} with coordinates {coordinates}: {_NONSENSE[projection, coordinates]}"
        )


HEAD_PRESETS = {
    "paper": HeadSettings(projection="linear", coordinates="plain", link="bayes", winner=True),
    "reference": HeadSettings(projection="reference", coordinates="sphere", link="class_norm", winner=True),
    "default": HeadSettings(),
    "softmax": HeadSettings(kind="softmax"),
}

_OLD_PROJECTIONS = {
    "none": ("none", "plain"),
    "linear": ("linear", "plain"),
    "l2": ("linear", "sphere"),
    "whitened": ("linear", "whitened"),
    "pole": ("batch_norm", "pole"),
    "reference": ("reference", "sphere"),
}
"""What the words for ``projection`` meant while it also said the coordinates."""


def present_words(settings: JSON) -> JSON:
    """Stored head settings in the words of this version.

    Settings with a projection and without coordinates were written by an earlier version, whose projection
    said both. All others are returned as they are.
    """
    old = settings.get("projection")
    if "coordinates" in settings or not isinstance(old, str) or old not in _OLD_PROJECTIONS:
        return settings
    projection, coordinates = _OLD_PROJECTIONS[old]
    return {**settings, "projection": projection, "coordinates": coordinates}


def head_settings(head: "str | HeadSettings") -> HeadSettings:
    """The settings a name stands for: paper, reference, default (also called gmm) or softmax."""
    if isinstance(head, HeadSettings):
        return head
    name = "default" if head == "gmm" else head
    if name not in HEAD_PRESETS:
        raise ValueError(f"unknown head {head!r}: choose gmm, {', '.join(HEAD_PRESETS)} or give HeadSettings")
    return HEAD_PRESETS[name]


def preset_head(preset: str, head: "str | HeadSettings | None" = None) -> HeadSettings:
    """The settings of the preset's head, or, in its place, those of ``head``."""
    if preset not in HEAD_PRESETS:
        raise ValueError(f"unknown preset {preset!r}: choose {', '.join(HEAD_PRESETS)}")
    return head_settings(preset if head is None else head)


def make_projection(name: str, in_channels: int, out_channels: int, *, bias: bool = True) -> nn.Module:
    """A module from features (n in_channels) to features (n out_channels): a convolution written for rows.

    ``none``: the features stay as they are (post-hoc mixtures). ``linear``: the convolution alone, with a
    ``bias`` if wanted (the paper). ``batch_norm``: then batch norm. ``reference``: then batch norm, ReLU and
    LayerNorm.
    """
    if name == "none":
        if in_channels != out_channels:
            raise ValueError(
                f"without a projection the mixtures need features of {out_channels} channels, not "
                f"{in_channels}: choose another dim, or a projection"
            )
        return nn.Identity()
    if name == "linear":
        return RowProduct(in_channels, out_channels, bias=bias)
    linear = RowProduct(in_channels, out_channels, bias=False)
    if name == "batch_norm":
        return nn.Sequential(linear, nn.BatchNorm1d(out_channels))
    if name == "reference":
        norm = nn.BatchNorm1d(out_channels)
        return nn.Sequential(linear, norm, nn.ReLU(inplace=True), nn.LayerNorm(out_channels))
    raise ValueError(f"unknown projection {name!r}: choose none, linear, batch_norm or reference")


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
        coordinates = mixture.coordinates
        _refuse_nonsense(projection, coordinates.name)
        self.projection = make_projection(
            projection, in_channels, coordinates.feature_channels, bias=not coordinates.removes_offset
        )
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
        coordinates=make_coordinates(settings.coordinates, settings.dim),
    )
    return GMMHead(
        in_channels,
        mixture,
        projection=settings.projection,
        link=settings.link,
        temperature=settings.temperature,
    )
