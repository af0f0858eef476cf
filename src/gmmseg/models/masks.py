"""Mask classification: Mask2Former with mixtures over its queries.

The network proposes queries; each has an embedding, which says what it is, and a mask, which says where.
The mixtures replace the linear layer that classifies the embeddings, with "no object" as one more class;
the masks stay as they are. So the points of the method are queries here, a hundred to an image.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.models.conversion import ChannelsLastClassifier, Triple
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, FeatureExtractor
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead, make_head
from gmmseg.models.huggingface import config_of
from gmmseg.models.mask_matching import Criterion, PairedMasks, full_precision, make_criterion, mask_labels
from gmmseg.models.outputs import ClassifiedPoints, MaskOutput, SegmenterOutput
from gmmseg.models.recipe import Recipe
from gmmseg.models.segmenter import Segmenter

if TYPE_CHECKING:
    from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerModel


class Queries(NamedTuple):
    """Per decoder layer, last one last: embeddings (b q f) and mask logits (b q h w)."""

    embeddings: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]


class Mask2FormerFeatures(FeatureExtractor):
    """transformers' Mask2Former without its class predictor; forward returns Queries, in float32."""

    stride = 4

    def __init__(self, network: "Mask2FormerModel") -> None:
        super().__init__()
        self.network = network
        self.out_channels = network.config.hidden_dim
        self.num_queries: int = network.config.num_queries

    @property
    def backbone(self) -> nn.Module:  # type: ignore[override]
        return self.network.pixel_level_module.encoder

    def forward(self, images: Tensor) -> Queries:  # type: ignore[override]
        output = self.network(images, output_hidden_states=True)
        layers = output.transformer_decoder_intermediate_states
        embeddings = tuple(each.transpose(0, 1).float() for each in layers)
        return Queries(embeddings, tuple(each.float() for each in output.masks_queries_logits))


class MaskSegmenter(Segmenter):
    """A Segmenter whose head classifies queries (of c + 1 classes, the last being "no object")."""

    points_are_cells = False

    def __init__(
        self,
        features: Mask2FormerFeatures,
        head: GMMHead | SoftmaxHead,
        criterion: Criterion,
        *,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__(features, head, mean=mean, std=std, recipe=recipe)
        self.criterion = criterion

    @property
    def num_classes(self) -> int:
        return self.head.num_classes - 1

    def forward(self, images: Tensor) -> MaskOutput:
        queries = self.features(self.normalise(images))
        layers = slice(None) if self.training else slice(-1, None)
        classified = [self.head.classify(each.flatten(0, 1)) for each in queries.embeddings[layers]]
        b, q = queries.embeddings[-1].shape[:2]
        query_logits = tuple(each.logits.float().unflatten(0, (b, q)) for each in classified)
        last, masks = query_rows(classified[-1], b), queries.masks[-1]
        evidence = None
        if last.evidence is not None:
            evidence = pixel_evidence(last.evidence.unflatten(0, (b, q)), query_logits[-1], masks)
        return MaskOutput(
            logits=pixel_logits(query_logits[-1], masks),
            points=None,
            evidence=evidence,
            queries=last,
            query_logits=query_logits,
            masks=queries.masks[layers],
        )

    def paired(self, output: SegmenterOutput, labels: Tensor) -> PairedMasks:
        """``output`` with its labels (b H W): queries matched once with the masks of the classes present.

        Its losses are Mask2Former's own terms, ``posterior`` of the queries, ``mask`` and ``dice``, each the
        sum over the decoder layers, and those of `Segmenter.losses` in ``extra``, on the matched queries.
        """
        assert isinstance(output, MaskOutput)
        return PairedMasks(output, labels, self.criterion)

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        """What each term of `losses` is the mean over, for labels (b H W): masks, or queries by weight."""
        classes = mask_labels(labels)[1]
        masks, known = float(sum(map(len, classes))), sum(len(each) > 0 for each in classes)
        features = self.features
        assert isinstance(features, Mask2FormerFeatures)
        queries = float(known * features.num_queries)
        counts = {
            "posterior": masks + self.criterion.eos_coef * (queries - masks),
            "mask": masks,
            "dice": masks,
            "component": queries,
            "likelihood": queries,
        }
        return {name: torch.tensor(count, device=labels.device) for name, count in counts.items()}


def query_rows(classified: SegmenterOutput, batch: int) -> ClassifiedPoints:
    """A head's rows (b*q), of ``batch`` images with as many queries each, and the index of a row's image."""
    points = classified.points
    assert points is not None
    images = torch.arange(batch, device=points.device).repeat_interleave(points.shape[0] // batch)
    return ClassifiedPoints(
        points, classified.logits.float(), images, classified.evidence, classified.mixture
    )


def pixel_logits(query_logits: Tensor, masks: Tensor) -> Tensor:
    """Logs of Mask2Former's class scores of pixels, (b c h w): sum_q p(class | q) sigmoid(mask_q).

    Their softmax over classes is the scores' share of their sum; "no object" is left out, as always.
    """
    with full_precision(masks):
        classes = query_logits.float().softmax(-1)[..., :-1]
        scores = torch.einsum("bqc,bqhw->bchw", classes, masks.float().sigmoid())
    return scores.clamp_min(torch.finfo(torch.float32).tiny).log()


def pixel_evidence(evidence: Tensor, query_logits: Tensor, masks: Tensor) -> Tensor:
    """Evidence of pixels (b c h w) from the evidence of queries (b q c+1), their logits and masks (b q h w).

    Query q *claims* a pixel with probability ``a_q = sigmoid(mask_q) (1 - p(no object | q))``. A pixel's
    evidence for a class is the mean log-likelihood of the queries that claim it, plus the log-probability
    that any query does:

        sum_q a_q evidence_qc / sum_q a_q  +  log(1 - prod_q (1 - a_q)).

    So two things make a pixel strange: the queries that cover it look like no class (the first term), or
    no query wants it (the second). The mean is one of logs, not of densities, on purpose: evidences differ
    by tens of nats, so in a mean of densities a familiar query elsewhere in the image, with a mask of one
    in a million here, would make every pixel look familiar.
    """
    objects = 1.0 - query_logits.float().softmax(-1)[..., -1]
    claims = masks.float().sigmoid() * objects[..., None, None]
    # The smallest share keeps the mean defined where nothing claims the pixel.
    shares = F.normalize(claims + 1e-12, p=1.0, dim=1)
    with full_precision(masks):
        mean = torch.einsum("bqc,bqhw->bchw", evidence[..., :-1].float(), shares)
    unclaimed = torch.log1p(-claims.clamp_max(1.0 - 1e-6)).sum(1, keepdim=True)
    return mean + torch.log(one_minus_exp(unclaimed) + 1e-12)


def one_minus_exp(logs: Tensor) -> Tensor:
    """1 - exp(logs) for logs up to 0, exact near 0, too: as torch.expm1, which ONNX does not have."""
    return -(logs / 2).tanh() * (1 + logs.exp())


def convert_mask2former(
    model: "Mask2FormerForUniversalSegmentation",
    settings: HeadSettings,
    num_classes: int | None,
    mean: Triple,
    std: Triple,
) -> MaskSegmenter:
    """A Mask2Former of transformers with a new head; ``softmax`` keeps its class predictor."""
    classes = num_classes or model.config.num_labels
    assert classes is not None
    recipe: Recipe = {
        "source": "transformers",
        "class": type(model).__name__,
        "config": config_of(model),
        "num_classes": classes,
        "head": asdict(settings),
        "mean": mean,
        "std": std,
    }
    return mask_segmenter(model, classes, settings, recipe, mean=mean, std=std)


def mask_segmenter(
    model: "Mask2FormerForUniversalSegmentation",
    num_classes: int,
    settings: HeadSettings,
    recipe: Recipe | None = None,
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> MaskSegmenter:
    """``model``, a Mask2Former of transformers, with a head for ``num_classes`` classes and "no object"."""
    features = Mask2FormerFeatures(model.model)
    same_classes = num_classes == model.config.num_labels
    head: GMMHead | SoftmaxHead
    if settings.kind == "softmax" and same_classes:
        classifier = ChannelsLastClassifier(model.class_predictor)
        head = SoftmaxHead(features.out_channels, num_classes + 1, classifier)
    else:
        head = make_head(settings, features.out_channels, num_classes + 1)
    return MaskSegmenter(
        features, head, make_criterion(model, num_classes), mean=mean, std=std, recipe=recipe
    )
