"""A segmenter: a feature extractor and a head, both visible, both swappable."""

from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture, OnlineEM
from gmmseg.mixture.gaussian import own_log_density
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, Features, resize
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead, make_head
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.outputs import EMPoints, SegmenterOutput
from gmmseg.models.saving import push_checkpoint, write_checkpoint

Colour = tuple[int, int, int]
_FEW_CLASSES = 16


class Segmenter(nn.Module):
    """Images (b 3 H W), RGB in [0, 1] -> SegmenterOutput at the stride of the features.

    ``features`` maps normalised images to maps (b f h w) or Features, and has ``out_channels``, ``stride``
    and ``backbone``. ``recipe`` is what `from_pretrained` needs to build the same network again.
    ``threshold`` says from which anomaly score on a pixel is unknown, ``temperature`` what a `Predictor`
    divides logits by for its posterior, ``typical`` how likely each class's own pixels are as a rule; all are
    found after training (`gmmseg.inference.choose`). ``inference``: how validation looked at images, and
    how a `Predictor` does unless told otherwise.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        features: nn.Module,
        head: GMMHead | SoftmaxHead,
        *,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        auxiliary_heads: tuple[nn.Module, ...] = (),
        recipe: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.auxiliary_heads = nn.ModuleList(auxiliary_heads)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.recipe = recipe
        self.label_names: tuple[str, ...] | None = None
        self.colours: tuple[Colour, ...] | None = None
        self.threshold: float | None = None
        self.temperature = 1.0
        self.typical: tuple[float, ...] | None = None
        self.inference = InferenceSettings()

    @property
    def mixture(self) -> ClassMixture | None:
        """The mixtures of a generative head; None for a softmax head."""
        return self.head.mixture if isinstance(self.head, GMMHead) else None

    @property
    def is_fitted(self) -> bool:
        """Whether it can predict: a converted or newly built one has mixtures that nobody has fitted yet."""
        return self.mixture is None or bool(self.mixture.fitted.any())

    @property
    def num_classes(self) -> int:
        return self.head.num_classes

    @property
    def stride(self) -> int:
        stride = self.features.stride
        assert isinstance(stride, int)
        return stride

    @property
    def align_corners(self) -> bool:
        """How class scores are resized to the image, see `resize`; features that do not say align centres."""
        return bool(getattr(self.features, "align_corners", False))

    @property
    def backbone(self) -> nn.Module:
        """The part that came pretrained."""
        backbone = self.features.backbone
        assert isinstance(backbone, nn.Module)
        return backbone

    def normalise(self, images: Tensor) -> Tensor:
        """Images in [0, 1] as the network was trained to see them, in channels_last."""
        return ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> SegmenterOutput:
        features = self.features(self.normalise(images))
        return self.on_features(Features(features) if isinstance(features, Tensor) else features)

    def on_features(self, features: Features) -> SegmenterOutput:
        """What `forward` returns, from the features of the images."""
        output = self.head(features.main)
        if not (self.training and len(self.auxiliary_heads)):
            return output
        auxiliary = tuple(
            head(maps) for head, maps in zip(self.auxiliary_heads, features.auxiliary, strict=True)
        )
        return replace(output, auxiliary=auxiliary)

    def losses(
        self,
        output: SegmenterOutput,
        labels: Tensor,
        extra: Collection[str] = (),
        em: OnlineEM | None = None,
    ) -> dict[str, Tensor]:
        """Named, unweighted terms for labels (b H W) int64, each zero when every label is IGNORE.

        ``posterior``: cross-entropy of the posterior at the labels' resolution. ``auxiliary``: mean
        cross-entropy of the auxiliary heads. A generative head has two more, for those who ask in ``extra``:
        ``component``, cross-entropy of each cell's own component among all c*k, and ``likelihood``, negative
        log-likelihood of each cell's point under its own class, per channel of the points and weighted by
        the posterior of that class. ``em`` says which component is a cell's own, as its next E-step will;
        without it, the likeliest one of its class.
        """
        terms = {"posterior": self._cross_entropy(output.logits, labels)}
        if extra and output.mixture is not None and output.evidence is not None:
            small = shrink_labels(labels, output.points.shape[-2:])
            if "component" in extra:
                terms["component"] = component_cross_entropy(output.mixture, output.points, small, em)
            if "likelihood" in extra:
                terms["likelihood"] = own_negative_log_likelihood(
                    output.logits, output.evidence, small, channels=output.points.shape[1]
                )
        if output.auxiliary:
            each = [self._cross_entropy(logits, labels) for logits in output.auxiliary]
            terms["auxiliary"] = torch.stack(each).mean()
        return terms

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of logits (b c h w) resized to labels (b H W)."""
        full = resize(logits, labels.shape[-2:], align_corners=self.align_corners)
        return cross_entropy(full, labels)

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        """How many labelled pixels or cells each term of `losses` is the mean over, for labels (b H W).

        Who adds up the losses of several batches weighs each term by its count: the sum is then that of one
        large batch.
        """
        height, width = (-(-side // self.stride) for side in labels.shape[-2:])
        cells = (shrink_labels(labels, (height, width)) != IGNORE).sum()
        pixels = (labels != IGNORE).sum()
        return {"posterior": pixels, "auxiliary": pixels, "likelihood": cells, "component": cells}

    @torch.no_grad()
    def em_points(self, output: SegmenterOutput, labels: Tensor) -> EMPoints:
        """What `OnlineEM.step` takes, of labels (b H W) at the centres of the feature map's cells."""
        points = output.points.detach()
        b, d, h, w = points.shape
        small = shrink_labels(labels, (h, w))
        groups = torch.arange(b, device=points.device).repeat_interleave(h * w)
        correct = output.logits.argmax(1) == small
        return EMPoints(
            points.permute(0, 2, 3, 1).reshape(-1, d), small.reshape(-1), groups, correct.reshape(-1)
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors: the network and the mixtures, no training state."""
        write_checkpoint(self, Path(folder))

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub; returns the address."""
        return push_checkpoint(self, repo_id, private=private, token=token)


def replace_head(segmenter: Segmenter, settings: HeadSettings) -> Segmenter:
    """A segmenter with the same features (shared, not copied) and a new, untrained head."""
    if type(segmenter) is not Segmenter:
        raise TypeError(f"the head of a {type(segmenter).__name__} is part of its matching and stays on it")
    channels = segmenter.features.out_channels
    assert isinstance(channels, int)
    replaced = Segmenter(
        segmenter.features,
        make_head(settings, channels, segmenter.num_classes),
        auxiliary_heads=tuple(segmenter.auxiliary_heads),
        recipe={**segmenter.recipe, "head": asdict(settings)} if segmenter.recipe else None,
    )
    replaced.mean, replaced.std = segmenter.mean, segmenter.std
    replaced.label_names, replaced.colours = segmenter.label_names, segmenter.colours
    replaced.inference = segmenter.inference
    return replaced


def shrink_labels(labels: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Labels (b H W) at the centres of the cells of a coarser grid, (b h w)."""
    return F.interpolate(labels[:, None].float(), size=tuple(size), mode="nearest-exact")[:, 0].to(
        labels.dtype
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labelled pixels, logits (b c h w) and labels (b h w); 0 when there are none."""
    # On a CPU, one row of classes per pixel takes half the time with many classes, and twice with fewer than
    # a vector of the processor holds; the numbers are the same.
    if logits.shape[1] < _FEW_CLASSES:
        rows, labels_of_rows = logits.float().contiguous(), labels
    else:
        rows, labels_of_rows = logits.float().movedim(1, -1).flatten(0, -2), labels.flatten()
    total = F.cross_entropy(rows, labels_of_rows, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp_min(1)


def own_negative_log_likelihood(logits: Tensor, evidence: Tensor, labels: Tensor, *, channels: int) -> Tensor:
    """Mean over labelled cells of -p(class | point) log p(point | class), their own class; 0 without cells.

    Logits and evidence (b c h w), labels (b h w); per channel of the points. The posterior is a weight alone,
    without a gradient: a cell that is not known for what it is yet is the cross-entropy's business.
    """
    labelled = labels != IGNORE
    classes = torch.where(labelled, labels, 0)[..., None]
    weight = logits.detach().movedim(1, -1).softmax(-1).gather(-1, classes)[..., 0] * labelled
    own = evidence.movedim(1, -1).gather(-1, classes)[..., 0]
    return -(weight * own).sum() / (channels * labelled.sum().clamp_min(1))


def component_cross_entropy(
    mixture: ClassMixture, points: Tensor, labels: Tensor, em: OnlineEM | None = None
) -> Tensor:
    """Cross-entropy of each cell's own component among all c*k; 0 without labelled cells.

    Points (b d h w) and labels (b h w) of the same grid. The own component is the one that the E-step of
    ``em`` gives the cell to; without ``em``, the likeliest one of the labelled class.
    """
    labelled = labels != IGNORE
    rows, classes = points.movedim(1, -1)[labelled], labels[labelled]
    with torch.no_grad():
        if em is None:
            own = own_log_density(rows, classes, mixture.means, mixture.variances)
            shares = own + mixture.log_weights[classes]
        else:
            shares = em.responsibilities(rows, classes)
        components = shares.argmax(-1)
    surprise = mixture.total(rows) - mixture.component_log_density(rows, classes, components)
    return surprise.sum() / labelled.sum().clamp_min(1)
