"""Mask classification: Mask2Former with mixtures over its queries.

The network proposes queries; each has an embedding, which says what it is, and a mask, which says where.
The mixtures replace the linear layer that classifies the embeddings, with "no object" as one more class;
the masks stay as they are. So the points of the method are queries here, a hundred to an image.
"""

import copy
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM
from gmmseg.models.convert import ChannelsLastClassifier
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, FeatureExtractor
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead, make_head
from gmmseg.models.huggingface import config_of
from gmmseg.models.outputs import EMPoints, SegmenterOutput
from gmmseg.models.segmenter import Segmenter, component_cross_entropy, own_negative_log_likelihood


class Queries(NamedTuple):
    """Per decoder layer, last one last: embeddings (b q f) and mask logits (b q h w)."""

    embeddings: tuple[Tensor, ...]
    masks: tuple[Tensor, ...]


@dataclass(frozen=True)
class MaskOutput(SegmenterOutput):
    """A segmenter's output in which ``points`` (b d q 1) and ``log_densities`` (b c+1 k q 1) are of queries.

    ``logits`` and ``evidence`` (b c h w) are of pixels, "no object" left out. ``query_logits`` (b q c+1) and
    ``masks`` (b q h w) are given per decoder layer; of the last one alone outside training.
    """

    query_logits: tuple[Tensor, ...] = ()
    masks: tuple[Tensor, ...] = ()


class Mask2FormerFeatures(FeatureExtractor):
    """transformers' Mask2Former without its class predictor; forward returns Queries, in float32."""

    stride = 4

    def __init__(self, network: Any) -> None:
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

    def __init__(
        self,
        features: Mask2FormerFeatures,
        head: GMMHead | SoftmaxHead,
        criterion: nn.Module,
        *,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        recipe: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(features, head, mean=mean, std=std, recipe=recipe)
        self.criterion: Any = criterion

    @property
    def num_classes(self) -> int:
        return self.head.num_classes - 1

    def forward(self, images: Tensor) -> MaskOutput:
        queries = self.features(self.normalise(images))
        layers = slice(None) if self.training else slice(-1, None)
        classified = [self.head.classify(each.flatten(0, 1)) for each in queries.embeddings[layers]]
        b, q = queries.embeddings[-1].shape[:2]
        query_logits = tuple(each.logits.float().unflatten(0, (b, q)) for each in classified)
        last, masks = classified[-1], queries.masks[-1]
        output = MaskOutput(
            logits=pixel_logits(query_logits[-1], masks),
            points=last.points.unflatten(0, (b, q)).transpose(1, 2).unsqueeze(-1),
            query_logits=query_logits,
            masks=queries.masks[layers],
        )
        if last.evidence is None:
            return output
        evidence = pixel_evidence(last.evidence.unflatten(0, (b, q)), query_logits[-1], masks)
        return replace(output, evidence=evidence, mixture=last.mixture)

    def losses(
        self,
        output: SegmenterOutput,
        labels: Tensor,
        extra: Collection[str] = (),
        em: OnlineEM | None = None,
    ) -> dict[str, Tensor]:
        """Mask2Former's own terms for labels (b H W): ``posterior`` of the queries, ``mask`` and ``dice``.

        Each is the sum over the decoder layers, in Mask2Former's own proportions; all are zero when every
        label is IGNORE. ``extra``: as in Segmenter, on the matched queries.
        """
        with _full_precision(labels):
            return self._losses(output, labels, extra, em)

    def _losses(
        self, output: SegmenterOutput, labels: Tensor, extra: Collection[str], em: OnlineEM | None
    ) -> dict[str, Tensor]:
        assert isinstance(output, MaskOutput)
        terms = self._own_terms(output, labels)
        if extra and output.mixture is not None:
            matched = self.matched_labels(output, labels)[..., None]
            if "component" in extra:
                terms["component"] = component_cross_entropy(output.mixture, output.points, matched, em)
            if "likelihood" in extra:
                rows = output.mixture(output.points.movedim(1, -1).flatten(0, 2))
                evidence = rows.unflatten(0, matched.shape).movedim(-1, 1)
                logits = output.query_logits[-1].movedim(-1, 1)[..., None]
                terms["likelihood"] = own_negative_log_likelihood(
                    logits, evidence, matched, channels=output.points.shape[1]
                )
        return terms

    def _own_terms(self, output: MaskOutput, labels: Tensor) -> dict[str, Tensor]:
        """Mask2Former's terms, of the images that have any label: others say nothing about their queries."""
        masks, classes = mask_labels(labels)
        known = [image for image, present in enumerate(classes) if len(present)]
        if not known:
            zero = torch.stack([each.sum() for each in (*output.query_logits, *output.masks)]).sum() * 0.0
            return {"posterior": zero, "mask": zero, "dice": zero}
        layers = [(mask[known], logits[known]) for mask, logits in zip(output.masks, output.query_logits)]
        earlier = [{"masks_queries_logits": m, "class_queries_logits": logits} for m, logits in layers[:-1]]
        targets = [masks[image] for image in known], [classes[image] for image in known]
        found = self.criterion(*layers[-1], *targets, earlier)
        names = {"posterior": "loss_cross_entropy", "mask": "loss_mask", "dice": "loss_dice"}
        weights = self.criterion.weight_dict
        return {
            name: weights[key] * torch.stack([value for each, value in found.items() if key in each]).sum()
            for name, key in names.items()
        }

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

    @torch.no_grad()
    def matched_labels(self, output: MaskOutput, labels: Tensor) -> Tensor:
        """The class of each query of the last layer by Mask2Former's matching, (b q); else "no object".

        An image without any label says nothing about its queries, so all of them are IGNORE.
        """
        masks, classes = mask_labels(labels)
        with _full_precision(labels):
            pairs = self.criterion.matcher(output.masks[-1], output.query_logits[-1], masks, classes)
        matched = torch.full(output.query_logits[-1].shape[:2], self.num_classes, device=labels.device)
        for row, (query, target), present in zip(matched, pairs, classes):
            row[query.to(row.device)] = present[target.to(row.device)]
        matched[(labels == IGNORE).flatten(1).all(1)] = IGNORE
        return matched

    @torch.no_grad()
    def em_points(self, output: SegmenterOutput, labels: Tensor) -> EMPoints:
        """What `OnlineEM.step` takes: the queries, their matched classes, their images."""
        assert isinstance(output, MaskOutput)
        matched = self.matched_labels(output, labels)
        b, d, q, _ = output.points.shape
        points = output.points.detach()[..., 0].transpose(1, 2).reshape(b * q, d)
        correct = output.query_logits[-1].argmax(-1) == matched
        groups = torch.arange(b, device=points.device).repeat_interleave(q)
        return EMPoints(points, matched.flatten(), groups, correct.flatten())


def _full_precision(tensor: Tensor) -> torch.autocast:
    """Float32 inside, also where the caller's loop keeps autocast on."""
    return torch.autocast(tensor.device.type, enabled=False)


def mask_labels(labels: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Per image of labels (b H W): masks (t H W) of the classes present, and those classes (t)."""
    masks, classes = [], []
    for each in labels:
        present = each.unique()
        present = present[present != IGNORE]
        classes.append(present)
        masks.append((each == present[:, None, None]).float())
    return masks, classes


def pixel_logits(query_logits: Tensor, masks: Tensor) -> Tensor:
    """Logs of Mask2Former's class scores of pixels, (b c h w): sum_q p(class | q) sigmoid(mask_q).

    Their softmax over classes is the scores' share of their sum; "no object" is left out, as always.
    """
    with _full_precision(masks):
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
    in a million here, would vouch for every pixel.
    """
    objects = 1.0 - query_logits.float().softmax(-1)[..., -1]
    claims = masks.float().sigmoid() * objects[..., None, None]
    # The smallest share keeps the mean defined where nothing claims the pixel.
    shares = F.normalize(claims + 1e-12, p=1.0, dim=1)
    with _full_precision(masks):
        mean = torch.einsum("bqc,bqhw->bchw", evidence[..., :-1].float(), shares)
    unclaimed = torch.log1p(-claims.clamp_max(1.0 - 1e-6)).sum(1, keepdim=True)
    return mean + torch.log(-torch.expm1(unclaimed) + 1e-12)


def convert_mask2former(
    model: Any, settings: HeadSettings, num_classes: int | None, mean: Any, std: Any
) -> MaskSegmenter:
    """A Mask2Former of transformers with a new head; ``softmax`` keeps its class predictor."""
    classes = num_classes or model.config.num_labels
    recipe = {
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
    model: Any,
    num_classes: int,
    settings: HeadSettings,
    recipe: dict[str, Any] | None = None,
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
    return MaskSegmenter(features, head, _criterion(model, num_classes), mean=mean, std=std, recipe=recipe)


def _criterion(model: Any, num_classes: int) -> nn.Module:
    """Mask2Former's matching and losses for this number of classes, without a trace in saved weights."""
    config = copy.deepcopy(model.config)
    config.num_labels = num_classes
    criterion = type(model.criterion)(config=config, weight_dict=model.weight_dict)
    # Its own count asks the other processes, and waits forever for one whose batch has no label at all; the
    # trainer weighs the batches of all processes (`label_counts`).
    criterion.get_num_masks = _number_of_masks
    weight = criterion.empty_weight
    del criterion.empty_weight
    criterion.register_buffer("empty_weight", weight, persistent=False)
    return criterion


def _number_of_masks(class_labels: list[Tensor], device: torch.device) -> Tensor:
    """Masks of this process's batch, of which Mask2Former's mask and dice terms are the mean; at least 1."""
    return torch.tensor(float(max(sum(len(each) for each in class_labels), 1)), device=device)
