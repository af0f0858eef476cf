import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM
from gmmseg.models.heads import HeadSettings
from gmmseg.models.huggingface import swin_config, swin_mask2former
from gmmseg.models.mask_matching import PairedMasks, mask_labels
from gmmseg.models.masks import MaskSegmenter

CLASSES = 4
EXTRA = ("component", "likelihood")


@pytest.fixture(scope="module")
def segmenter() -> MaskSegmenter:
    torch.manual_seed(0)
    model = swin_mask2former(swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), CLASSES, None)
    return gmmseg.convert(model, head=HeadSettings(components=2, dim=8)).train()


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(3, 3, 64, 64, generator=generator)


@pytest.fixture
def labels(generator: torch.Generator) -> Tensor:
    """Three classes, nothing at all, and one class in part of the image."""
    labels = torch.full((3, 64, 64), IGNORE)
    patches = torch.randint(0, 3, (8, 8), generator=generator)
    labels[0] = patches.repeat_interleave(8, 0).repeat_interleave(8, 1)
    labels[2, 10:50] = 3
    return labels


def paired_at(segmenter: MaskSegmenter, images: Tensor, labels: Tensor, seed: int = 3) -> PairedMasks:
    torch.manual_seed(seed)
    return segmenter.paired(segmenter(images), labels)


def test_labels_become_one_mask_per_class() -> None:
    labels = torch.tensor([[[0, 2], [2, IGNORE]], [[IGNORE, IGNORE], [IGNORE, IGNORE]]])
    masks, classes = mask_labels(labels)
    assert classes[0].tolist() == [0, 2]
    assert masks[0].tolist() == [[[1, 0], [0, 0]], [[0, 1], [1, 0]]]
    assert len(classes[1]) == len(masks[1]) == 0


def test_matching_gives_every_class_one_query(segmenter: MaskSegmenter, images: Tensor) -> None:
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    labels[0, :, 32:], labels[1] = 2, IGNORE
    output = segmenter(images)
    points, classes, groups, _ = segmenter.em_points(output, labels)
    first, second = classes[groups == 0].tolist(), classes[groups == 1].tolist()
    assert sorted(set(first)) == [0, 2, CLASSES]
    assert first.count(0) == first.count(2) == 1
    assert set(second) == {IGNORE}, "an image without labels teaches nothing"
    query = first.index(2)
    assert torch.equal(points[query], output.queries.points[query])


def test_a_step_matches_each_layer_once(
    segmenter: MaskSegmenter, images: Tensor, labels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For Mask2Former's own terms, the terms of points and EM together."""
    matcher, calls = segmenter.criterion.matcher, []
    forward = type(matcher).forward
    monkeypatch.setattr(type(matcher), "forward", lambda *given: calls.append(given) or forward(*given))
    paired = paired_at(segmenter, images, labels)
    assert len(paired.losses(EXTRA, OnlineEM(segmenter.mixture))) == 5
    paired.points.for_em()
    assert len(calls) == len(paired.output.masks) > 1
    assert {len(given[1]) for given in calls} == {2}, "an image without labels has nothing to match"


def test_the_match_costs_least_of_all(segmenter: MaskSegmenter, images: Tensor, labels: Tensor) -> None:
    """Of every way to give two masks their queries, by Mask2Former's cost written from its definition."""
    labels[0] = torch.where(labels[0] == 2, 1, labels[0])
    output = segmenter(images)
    drawn = torch.rand(segmenter.criterion.matcher.num_points, 2, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *shape, **given: drawn.view(shape))
        (queries, targets), _ = segmenter.paired(output, labels).match
    grid = 2 * drawn[None, :, None] - 1
    seen = F.grid_sample(output.masks[-1][:1], grid, align_corners=False)[0, :, :, 0]
    masks = F.grid_sample(mask_labels(labels)[0][0][None], grid, align_corners=False)[0, :, :, 0]
    cost = torch.zeros(len(seen), 2)
    for q, logits in enumerate(seen):
        for t, mask in enumerate(masks):
            entropy = F.binary_cross_entropy_with_logits(logits, mask)
            claimed = logits.sigmoid()
            dice = 1 - (2 * (claimed * mask).sum() + 1) / (claimed.sum() + mask.sum() + 1)
            right = output.query_logits[-1][0, q].softmax(0)[t]  # the classes present are 0 and 1
            matcher = segmenter.criterion.matcher
            cost[q, t] = matcher.cost_mask * entropy + matcher.cost_dice * dice - matcher.cost_class * right
    pairs = cost[:, None, 0] + cost[None, :, 1]
    pairs.fill_diagonal_(float("inf"))
    ours = cost[queries, targets].sum()
    torch.testing.assert_close(ours, pairs.min(), rtol=1e-4, atol=1e-4)


def test_points_are_queries_with_the_class_of_their_mask(
    segmenter: MaskSegmenter, images: Tensor, labels: Tensor
) -> None:
    paired = paired_at(segmenter, images, labels)
    each = paired.points
    queries = paired.output.query_logits[-1].shape[1]
    matched = {0: paired.match[0], 2: paired.match[1]}
    classes = {0: [0, 1, 2], 2: [3]}
    for n, label in enumerate(each.labels.tolist()):
        image, query = divmod(n, queries)
        assert each.classified.images[n] == image
        assert torch.equal(each.classified.logits[n], paired.output.query_logits[-1][image, query])
        if image == 1:
            assert label == IGNORE
            continue
        found = [classes[image][t] for q, t in zip(*matched[image]) if q == query]
        assert label == (found[0] if found else CLASSES)


def test_own_terms_equal_mask2formers_loss_by_definition(
    segmenter: MaskSegmenter, images: Tensor, labels: Tensor
) -> None:
    """Its criterion called as transformers calls it, on the labelled images; the posterior as a loop, too."""
    paired = paired_at(segmenter, images, labels, seed=4)
    ours = paired.losses()
    output, known = paired.output, [0, 2]
    masks, classes = mask_labels(labels[known])
    earlier = [
        {"masks_queries_logits": mask[known], "class_queries_logits": logits[known]}
        for mask, logits in zip(output.masks[:-1], output.query_logits[:-1])
    ]
    torch.manual_seed(4)
    segmenter(images)
    last = output.masks[-1][known], output.query_logits[-1][known]
    theirs = segmenter.criterion(*last, masks, classes, earlier)
    for name, key in {"posterior": "loss_cross_entropy", "mask": "loss_mask", "dice": "loss_dice"}.items():
        terms = [value for each, value in theirs.items() if each.startswith(key)]
        assert len(terms) == len(output.masks)
        torch.testing.assert_close(ours[name], segmenter.criterion.weight_dict[key] * sum(terms))
    each = paired.points
    surprise, weights = 0.0, 0.0
    for logits, label in zip(each.classified.logits, each.labels.tolist()):
        if label != IGNORE:
            weight = segmenter.criterion.eos_coef if label == CLASSES else 1.0
            surprise -= weight * logits.log_softmax(0)[label]
            weights += weight
    torch.testing.assert_close(surprise / weights, theirs["loss_cross_entropy"])


@pytest.mark.parametrize("steps", [0, 2])
def test_terms_of_queries_equal_a_loop(
    segmenter: MaskSegmenter, images: Tensor, labels: Tensor, steps: int
) -> None:
    """With mixtures as they start, and after EM has moved them."""
    em = OnlineEM(segmenter.mixture)
    for seed in range(steps):
        em.step(*paired_at(segmenter, images, labels, seed).points.for_em())
    paired = paired_at(segmenter, images, labels)
    terms, each = paired.losses(EXTRA), paired.points
    likelihood, component = [], []
    for point, logits, label in zip(each.classified.points, each.classified.logits, each.labels.tolist()):
        if label != IGNORE:
            weighted = segmenter.mixture.log_density(point[None])[0] + segmenter.mixture.log_weights
            posterior = logits.softmax(0)[label].detach()
            likelihood.append(-posterior * weighted[label].logsumexp(0) / len(point))
            component.append(weighted.flatten().logsumexp(0) - weighted[label].max())
    torch.testing.assert_close(terms["likelihood"], torch.stack(likelihood).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["component"], torch.stack(component).mean(), rtol=1e-4, atol=1e-5)
