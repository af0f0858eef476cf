"""A segmenter: a feature extractor and a head, both visible, both swappable."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture, OnlineEM
from gmmseg.models.calibration_file import Calibration
from gmmseg.models.companion import Companion, joint_logits, say_left_behind
from gmmseg.models.density import CellDensity, maps_of_density
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, Features, extracted
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead, make_head
from gmmseg.models.inference_settings import InferenceSettings
from gmmseg.models.outputs import EMPoints, SegmenterOutput
from gmmseg.models.pairing import PairedMaps, PairedOutput, shrink_labels
from gmmseg.models.recipe import Recipe
from gmmseg.models.saving import push_checkpoint, write_checkpoint

Colour = tuple[int, int, int]


class Segmenter(nn.Module):
    """Images (b 3 H W), RGB in [0, 1] -> SegmenterOutput at the stride of the features.

    ``features`` maps normalised images to maps (b f h w) or Features, and has ``out_channels``, ``stride``
    and ``backbone``. ``recipe`` is what `from_pretrained` needs to build the same network again.
    ``calibration`` holds what was found after training (`gmmseg.inference.calibrate`); None before.
    ``density``: what `gmmseg.run.fit_density` puts beside the head; it changes no label and no posterior.
    ``companions``: more decoders and heads on the same backbone, whose posteriors are averaged with that of
    the head: trained beside it (`train.decoders`), or what `gmmseg.run.adapt` leaves of a softmax model.
    ``inference``: how validation looked at images, and how a `Predictor` does unless told otherwise.
    """

    mean: Tensor
    std: Tensor
    points_are_cells = True
    """Whether its mixtures see a point in each cell of the maps; else points are something else (queries)."""

    def __init__(
        self,
        features: nn.Module,
        head: GMMHead | SoftmaxHead,
        *,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        auxiliary_heads: tuple[nn.Module, ...] = (),
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__()
        if head.num_classes > IGNORE:
            raise ValueError(
                f"{head.num_classes} classes: a segmenter has at most {IGNORE}, since label maps hold 8 bits "
                f"and {IGNORE} is the label nobody learns from"
            )
        self.features = features
        self.head = head
        self.auxiliary_heads = nn.ModuleList(auxiliary_heads)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.recipe = recipe
        self.label_names: tuple[str, ...] | None = None
        self.colours: tuple[Colour, ...] | None = None
        self.calibration: Calibration | None = None
        self.density: CellDensity | None = None
        self.companions = nn.ModuleList()
        self.inference = InferenceSettings()

    @property
    def mixture(self) -> ClassMixture | None:
        """The mixtures of a generative head; None for a softmax head."""
        return self.head.mixture if isinstance(self.head, GMMHead) else None

    @property
    def temperature(self) -> float:
        """What a `Predictor` divides logits by for its posterior; 1 before calibration."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    @property
    def is_fitted(self) -> bool:
        """Whether it can predict: a converted or newly built one has mixtures that nobody has fitted yet."""
        heads = (self.head, *(each.head for each in self._companions))
        return all(bool(head.mixture.fitted.any()) for head in heads if isinstance(head, GMMHead))

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
        height, width = images.shape[-2:]
        if self._reads_maps:
            features, maps = extracted(self.features, self.normalise(images))
        else:
            features, maps = self.features(self.normalise(images)), None
            features = Features(features) if isinstance(features, Tensor) else features
        return self.on_features(features, maps, (height, width))

    @property
    def _reads_maps(self) -> bool:
        """Whether something beside the head looks at the backbone's maps."""
        if self.training:
            return len(self.learning) > 0
        return self.density is not None or len(self.companions) > 0

    def on_features(
        self,
        features: Features,
        maps: tuple[Tensor, ...] | None,
        image_size: tuple[int, int],
        maps_of_companions: Sequence[tuple[Tensor, ...]] = (),
    ) -> SegmenterOutput:
        """What `forward` returns, from what `extracted` gives of images of a size (H, W).

        ``maps_of_companions``: in training, those of other images for each companion that learns; by default
        all learn from the same.
        """
        output = self.head(features.main)
        if self.training:
            if len(self.auxiliary_heads):
                heads = zip(self.auxiliary_heads, features.auxiliary, strict=True)
                output = replace(output, auxiliary=tuple(head(each) for head, each in heads))
            seen: Sequence[tuple[Tensor, ...] | None] = maps_of_companions or [maps] * len(self.learning)
            beside = zip(self.learning, seen, strict=True)
            return replace(output, companions=tuple(each(features, own, image_size) for each, own in beside))
        if len(self.companions):
            others = ((each(features, maps, image_size).logits, each.members) for each in self._companions)
            output = replace(output, logits=joint_logits(output.logits, others))
        if self.density is not None:
            read = maps_of_density(self.features, features, maps, image_size)
            output = replace(output, density_evidence=self.density(read))
        return output

    @property
    def learning(self) -> list[Companion]:
        """The companions that are trained with it."""
        return [each for each in self._companions if each.learns]

    @property
    def _companions(self) -> list[Companion]:
        return cast(list[Companion], list(self.companions))

    def paired(self, output: SegmenterOutput, labels: Tensor) -> PairedOutput:
        """``output`` with its labels (b H W) int64: who needs both loss and EM points takes them from it."""
        return PairedMaps(output, labels, align_corners=self.align_corners)

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
        the posterior of that class. ``teacher``, where the output has a teacher's logits: how far the
        posterior is from the teacher's. ``em`` says which component is a cell's own, as its next E-step will;
        without it, the likeliest one of its class.
        """
        return self.paired(output, labels).losses(extra, em)

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        """How many labelled pixels or cells each term of `losses` is the mean over, for labels (b H W).

        Who adds up the losses of several batches weighs each term by its count: the sum is then that of one
        large batch.
        """
        height, width = (-(-side // self.stride) for side in labels.shape[-2:])
        cells = (shrink_labels(labels, (height, width)) != IGNORE).sum()
        pixels = (labels != IGNORE).sum()
        of_cells = dict.fromkeys(("likelihood", "component", "teacher"), cells)
        return {"posterior": pixels, "auxiliary": pixels, **of_cells}

    @torch.no_grad()
    def em_points(self, output: SegmenterOutput, labels: Tensor) -> EMPoints:
        """What `OnlineEM.step` takes: the points of ``output`` with their labels, given labels (b H W)."""
        return self.paired(output, labels).points.for_em()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors: the network and the mixtures, no training state.

        A calibration is written beside them as calibration.json.
        """
        write_checkpoint(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, architecture: nn.Module | None = None) -> Self:
        """The segmenter that `save_pretrained` wrote to ``folder``; see `gmmseg.from_pretrained`."""
        from gmmseg.models.pretrained import from_pretrained  # which builds segmenters, and so imports this

        segmenter = from_pretrained(folder, architecture=architecture)
        if not isinstance(segmenter, cls):
            raise TypeError(f"{folder} holds a {type(segmenter).__name__}, not a {cls.__name__}")
        return segmenter

    def with_class(
        self, name: str, points: Tensor, *, components: int | None = None, offset: float | None = None
    ) -> "Segmenter":
        """A new segmenter with one more class, the last, fitted on ``points`` (n d) of its mixture.

        Nothing is trained, and all other classes keep their densities and the head's logits bit for bit.
        Companions do not know it: it has the head's odds. ``offset``: its log prior in the link.
        `gmmseg.run.add_class` does this from images and masks, and chooses the offset.
        """
        from gmmseg.models.class_changes import Samples, with_class  # which changes segmenters

        return with_class(self, name, Samples(points), components=components, offset=offset)

    def without_class(self, name: str) -> "Segmenter":
        """A new segmenter without one class."""
        from gmmseg.models.class_changes import without_class

        return without_class(self, name)

    def with_class_renamed(self, name: str, to: str) -> "Segmenter":
        """The same segmenter where one class has another name."""
        from gmmseg.models.class_changes import with_class_renamed

        return with_class_renamed(self, name, to)

    def with_classes_merged(self, name: str, other: str, *, to: str | None = None) -> "Segmenter":
        """A new segmenter with the class ``other`` taken into ``name``, called that or ``to``."""
        from gmmseg.models.class_changes import with_classes_merged

        return with_classes_merged(self, name, other, to=to)

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub; returns the address."""
        return push_checkpoint(self, repo_id, private=private, token=token)


def replace_head(
    segmenter: Segmenter, settings: HeadSettings, *, num_classes: int | None = None
) -> Segmenter:
    """A segmenter with the same features (shared, not copied) and a new, untrained head alone.

    ``num_classes``: by default those it has.
    """
    if not segmenter.points_are_cells:
        raise ValueError(
            f"the head of a {type(segmenter).__name__} is part of its matching and stays on it: convert the "
            "network with the head it is to have, and train that"
        )
    say_left_behind(segmenter.companions)
    channels = segmenter.features.out_channels
    assert isinstance(channels, int)
    replaced = Segmenter(
        segmenter.features,
        make_head(settings, channels, num_classes or segmenter.num_classes),
        auxiliary_heads=tuple(segmenter.auxiliary_heads),
        recipe={**segmenter.recipe, "head": asdict(settings)} if segmenter.recipe else None,
    )
    replaced.mean, replaced.std = segmenter.mean, segmenter.std
    replaced.label_names, replaced.colours = segmenter.label_names, segmenter.colours
    replaced.inference = segmenter.inference
    return replaced
