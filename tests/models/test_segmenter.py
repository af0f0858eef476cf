import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.models.fcn import auxiliary_head
from gmmseg.models.features import Features
from gmmseg.models.heads import HeadSettings, make_head
from gmmseg.models.pairing import shrink_labels
from gmmseg.models.segmenter import Segmenter

C, K, D = 3, 2, 4


class Strided(nn.Module):
    """Features at stride 2, with an auxiliary map."""

    out_channels, stride = 5, 2

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 5, 2, stride=2)

    def forward(self, images: torch.Tensor) -> Features:
        maps = self.backbone(images)
        return Features(maps, (maps,))


@pytest.fixture
def segmenter() -> Segmenter:
    torch.manual_seed(0)
    head = make_head(HeadSettings(components=K, dim=D), 5, C)
    heads = (auxiliary_head(5, C, channels=4), auxiliary_head(5, C, channels=4))
    made = Segmenter(Strided(), head, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), auxiliary_heads=heads[:1])
    return made.train()


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, C, (2, 8, 12), generator=generator)
    labels[0, :3] = IGNORE
    return torch.rand(2, 3, 8, 12, generator=generator), labels


def test_images_are_normalised_inside(segmenter: Segmenter, batch: tuple) -> None:
    seen = segmenter.normalise(batch[0])
    expected = (batch[0] - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / torch.tensor([0.5, 0.6, 0.7]).view(
        3, 1, 1
    )
    torch.testing.assert_close(seen, expected)
    assert not {"mean", "std"} & set(segmenter.state_dict())


def test_posterior_loss_is_the_mean_over_labelled_pixels(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    output = segmenter(images)
    full = F.interpolate(output.logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    log_posterior = full.log_softmax(1)
    each = [
        -log_posterior[b, labels[b, h, w], h, w]
        for b in range(2)
        for h in range(8)
        for w in range(12)
        if labels[b, h, w] != IGNORE
    ]
    torch.testing.assert_close(segmenter.losses(output, labels)["posterior"], torch.stack(each).mean())


def test_likelihood_loss_equals_a_loop(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    output = segmenter(images)
    small = shrink_labels(labels, output.points.shape[-2:])
    each = []
    for b, h, w in (small != IGNORE).nonzero().tolist():
        row = segmenter.mixture.log_density(output.points[b, :, h, w][None])[0]
        posterior = output.logits[b, :, h, w].softmax(0)[small[b, h, w]]
        each.append(-posterior.detach() * row[small[b, h, w]].logsumexp(0).sub(math.log(K)) / D)
    ours = segmenter.losses(output, labels, ["likelihood"])["likelihood"]
    torch.testing.assert_close(ours, torch.stack(each).mean())


def test_all_ignored_batch_costs_nothing(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    terms = segmenter.losses(segmenter(images), torch.full_like(labels, IGNORE), ["component", "likelihood"])
    assert set(terms) == {"posterior", "component", "likelihood", "auxiliary"}
    assert all(term == 0.0 for term in terms.values())
    sum(terms.values()).backward()
    assert all(value.grad.isfinite().all() for value in segmenter.parameters() if value.grad is not None)


def test_images_one_by_one_cost_what_the_batch_does_when_weighed_by_their_labels(
    segmenter: Segmenter, batch: tuple
) -> None:
    images, labels = batch
    labels[0, 1:] = IGNORE
    extra = ("component", "likelihood")
    segmenter.auxiliary_heads.eval()  # their batch norm would tell the two apart
    together = segmenter.losses(segmenter(images), labels, extra)
    counts = segmenter.label_counts(labels)
    parts = dict.fromkeys(together, 0.0)
    for image, own in zip(images.split(1), labels.split(1)):
        share = segmenter.label_counts(own)
        for name, value in segmenter.losses(segmenter(image), own, extra).items():
            parts[name] += value.item() * share[name] / counts[name]
    assert parts.keys() == {"posterior", "auxiliary", *extra}
    for name, value in together.items():
        assert parts[name] == pytest.approx(value.item(), rel=1e-5), name


def test_terms_come_when_asked_for(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    assert set(segmenter.losses(segmenter(images), labels)) == {"posterior", "auxiliary"}
    assert set(segmenter.eval().losses(segmenter(images), labels)) == {"posterior"}


def test_auxiliary_loss_is_the_mean_of_its_heads(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    output = segmenter(images)
    logits = F.interpolate(output.auxiliary[0], size=labels.shape[-2:], mode="bilinear", align_corners=False)
    expected = F.cross_entropy(logits, labels, ignore_index=IGNORE)
    torch.testing.assert_close(segmenter.losses(output, labels)["auxiliary"], expected)


def test_em_points_are_pixels_with_their_labels(segmenter: Segmenter, batch: tuple) -> None:
    images, labels = batch
    output = segmenter(images)
    points, small, groups, _ = segmenter.em_points(output, labels)
    assert not points.requires_grad
    n = 0
    for b in range(2):
        for h in range(4):
            for w in range(6):
                assert torch.equal(points[n], output.points[b, :, h, w])
                assert small[n] == labels[b, 2 * h + 1, 2 * w + 1]  # the pixel at the cell's centre
                assert groups[n] == b
                n += 1
    assert n == len(points)


def test_plain_maps_are_features_too(batch: tuple) -> None:
    network = Strided()
    network.forward = lambda images: network.backbone(images)  # type: ignore[method-assign]
    segmenter = Segmenter(network, make_head(HeadSettings(kind="softmax"), 5, C))
    assert segmenter(batch[0]).logits.shape == (2, C, 4, 6)
    assert segmenter.stride == 2
    assert segmenter.backbone is network.backbone


def test_more_classes_than_label_maps_can_hold_are_refused():
    assert gmmseg.build("tiny_unet", num_classes=255).num_classes == 255
    with pytest.raises(ValueError, match="256 classes: a segmenter has at most 255, since label maps hold 8"):
        gmmseg.build("tiny_unet", num_classes=256)
