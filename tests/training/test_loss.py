from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM
from gmmseg.training.loss import make_loss
from gmmseg.training.train_settings import TrainSettings


@pytest.fixture
def segmenter():
    torch.manual_seed(0)
    return gmmseg.build("tiny_unet", num_classes=3).train()


@pytest.fixture
def paired(segmenter, generator):
    labels = torch.randint(0, 3, (2, 32, 48), generator=generator)
    labels[0, :9] = IGNORE
    return segmenter.paired(segmenter(torch.rand(2, 3, 32, 48, generator=generator)), labels)


def same(module):
    return module


def test_without_a_warm_up_the_terms_are_the_segmenters(segmenter, paired):
    em = OnlineEM(segmenter.mixture)
    loss = make_loss(segmenter, TrainSettings(component_weight=0.5), em, same)
    expected = segmenter.losses(paired.output, paired.labels, ("component", "likelihood"), em)
    found = loss(paired, 0)
    assert found.keys() == expected.keys() == {"posterior", "component", "likelihood"}
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not list(loss.parameters())
    assert loss.state_dict() == {}


def test_the_warm_up_trains_points_by_a_linear_classifier_until_it_ends(segmenter, paired):
    loss = make_loss(segmenter, TrainSettings(softmax_steps=4), None, same)
    terms = loss(paired, 3)
    weight, bias = loss.parameters()
    logits = torch.einsum("cd,bdhw->bchw", weight[:, :, 0, 0], paired.output.points) + bias[:, None, None]
    full = F.interpolate(logits, size=(32, 48), mode="bilinear", align_corners=False)
    expected = F.cross_entropy(full, paired.labels, ignore_index=IGNORE)
    torch.testing.assert_close(terms["warmup"], expected)
    assert terms.keys() == {"posterior", "warmup"}
    assert terms["posterior"] == 0
    sum(terms.values()).backward()
    assert segmenter.head.projection.weight.grad.abs().sum() > 0
    assert segmenter.head.link.log_temperature.grad.abs().sum() == 0, "the mixtures' link is not trained yet"
    assert loss(paired, 4).keys() == {"posterior", "likelihood"}


def test_the_warm_up_lays_cells_over_pixels_as_the_network_does(segmenter, generator):
    segmenter.features.align_corners = True
    output = segmenter(torch.rand(2, 3, 32, 48, generator=generator))
    paired = segmenter.paired(output, torch.randint(0, 3, (2, 32, 48), generator=generator))
    loss = make_loss(segmenter, TrainSettings(softmax_steps=1), None, same)
    logits = loss.network(output.points)
    full = F.interpolate(logits, size=(32, 48), mode="bilinear", align_corners=True)
    torch.testing.assert_close(loss(paired, 0)["warmup"], F.cross_entropy(full, paired.labels))


def test_every_term_has_its_count(segmenter, paired):
    loss = make_loss(segmenter, TrainSettings(softmax_steps=4), None, same)
    counts = loss.label_counts(paired.labels)
    assert loss(paired, 0).keys() | loss(paired, 4).keys() <= counts.keys()
    assert counts["warmup"] == (paired.labels != IGNORE).sum()


def test_the_state_of_a_warm_up_is_its_classifier(segmenter, paired):
    one, two = (make_loss(segmenter, TrainSettings(softmax_steps=4), None, same) for _ in range(2))
    assert one(paired, 0)["warmup"] != two(paired, 0)["warmup"]
    two.load_state_dict(one.state_dict())
    assert one(paired, 0)["warmup"] == two(paired, 0)["warmup"]


def test_a_softmax_head_needs_no_warm_up_and_queries_have_none(segmenter):
    settings = TrainSettings(softmax_steps=4)
    twin = gmmseg.build("tiny_unet", num_classes=3, head="softmax")
    assert not list(make_loss(twin, settings, None, same).parameters())
    queries = SimpleNamespace(mixture=segmenter.mixture, points_are_cells=False)
    with pytest.raises(ValueError, match=r"train\.softmax_steps=4: .* set it to 0"):
        make_loss(queries, settings, None, same)
