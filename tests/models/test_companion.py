"""A softmax classifier beside a generative head: both are asked, one is trained."""

import json

import pytest
import torch

import gmmseg
from gmmseg.inference.export_graph import ExportGraph
from gmmseg.inference.windows import fitting
from gmmseg.models.companion import companion_of
from gmmseg.models.segmenter import replace_head
from gmmseg.models.weights import WeightsError

NAMES = ("road", "sky", "tree", "car")
ZOO = ["tiny_unet", "timm:test_resnet", "timm:test_vit@1,5"]


@torch.no_grad()
def points(model, count):
    """Random features as its mixtures see them."""
    return model.head.classify(torch.randn(count, model.features.out_channels)).points


def both(name="tiny_unet", kind="decoder"):
    """A softmax model, and a generative one with another decoder whose companion it is."""
    torch.manual_seed(0)
    softmax = gmmseg.build(name, preset="softmax", class_names=NAMES).eval()
    generative = gmmseg.build(name, class_names=NAMES).eval()
    generative.features.backbone.load_state_dict(softmax.features.backbone.state_dict())
    if kind == "head":
        generative = replace_head(softmax, gmmseg.models.heads.HEAD_PRESETS["default"]).eval()
    generative.mixture.fit(points(generative, 400), torch.arange(400) % 4, passes=1)
    generative.label_names = NAMES
    generative.companion = companion_of(softmax.features, softmax.head, kind)
    return softmax, generative


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("size", [(64, 96), (33, 50)])
def test_its_logits_are_those_of_the_softmax_model(name, size):
    softmax, generative = both(name)
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        expected, pooled = softmax(images).logits, generative(images).logits
        generative.companion = None
        own = generative(images).logits
    torch.testing.assert_close(pooled, (own + expected) / 2)


def test_the_pooled_posterior_is_the_geometric_mean_of_both():
    softmax, generative = both()
    images = torch.rand(1, 3, 32, 48)
    with torch.no_grad():
        pooled = generative(images).logits.softmax(1)
        generative.companion = None
        product = (generative(images).logits.softmax(1) * softmax(images).logits.softmax(1)).sqrt()
    torch.testing.assert_close(pooled, product / product.sum(1, keepdim=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["decoder", "head"])
@pytest.mark.parametrize("name", ["tiny_unet", "timm:test_resnet"])
def test_it_is_saved_without_a_second_backbone_and_loaded(tmp_path, name, kind):
    _, generative = both(name, kind)
    generative.save_pretrained(tmp_path)
    loaded = gmmseg.from_pretrained(tmp_path)
    assert loaded.companion.kind == kind
    assert not [each for each in loaded.companion.state_dict() if "backbone" in each]
    images = torch.rand(1, 3, 40, 56)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, generative(images).logits)


def test_training_leaves_it_alone_and_does_without_it():
    _, generative = both()
    kept = {name: each.clone() for name, each in generative.companion.state_dict().items()}
    generative.train()
    images = torch.rand(2, 3, 32, 48)
    logits = generative(images).logits
    logits.sum().backward()
    assert not generative.companion.training
    assert all(each.grad is None for each in generative.companion.parameters())
    assert all(torch.equal(each, kept[name]) for name, each in generative.companion.state_dict().items())


def test_a_model_whose_classes_change_leaves_it_behind():
    _, generative = both()
    with torch.no_grad():
        alone = gmmseg.models.conversion.share_weights(generative)
        alone.companion = None
        images = torch.rand(1, 3, 32, 48)
        with pytest.warns(UserWarning, match="left behind"):
            changed = generative.with_class("cone", points(generative, 50))
        assert changed.companion is None
        assert torch.equal(changed(images).logits[:, :4], alone(images).logits)
    assert generative.companion is not None
    renamed = generative.with_class_renamed("car", "van")
    with torch.no_grad():
        assert torch.equal(renamed(images).logits, generative(images).logits)


def test_the_exported_graph_asks_both():
    _, generative = both()
    images = torch.rand(1, 3, 64, 96)
    graph = ExportGraph(generative, lambda h, w, stride: fitting((h, w), stride), posterior=True).eval()
    with torch.no_grad():
        posterior = graph(images, torch.tensor(0.0))[-1]
        logits = torch.nn.functional.interpolate(generative(images).logits, size=(64, 96), mode="bilinear")
    torch.testing.assert_close(posterior, logits.softmax(1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("entry", "said"), [("friend", "not understood"), (["decoder"], "not understood")])
def test_a_damaged_entry_is_refused(tmp_path, entry, said):
    _, generative = both()
    generative.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "companion": entry}))
    with pytest.raises(WeightsError, match=said):
        gmmseg.from_pretrained(tmp_path)


def test_what_has_no_such_parts_is_refused():
    _, generative = both()
    with pytest.raises(ValueError, match="only a softmax classifier"):
        companion_of(generative.features, generative.head, "decoder")
    whole = gmmseg.build("smp:FPN/mobilenet_v2", preset="softmax", class_names=NAMES)
    with pytest.raises(ValueError, match="cannot be split"):
        companion_of(whole.features, whole.head, "decoder")


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["smp:Unet/resnet18", "torchvision:lraspp_mobilenet_v3_large"])
def test_a_classifier_that_is_no_1x1_convolution_is_loaded(tmp_path, name, given):
    """It is the network's own, whether or not a segmenter to fill is given."""
    _, generative = both(name, "head")
    generative.save_pretrained(tmp_path)
    architecture = gmmseg.build(name, class_names=NAMES) if given else None
    loaded = gmmseg.from_pretrained(tmp_path, architecture=architecture)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, generative(images).logits)


def test_another_head_or_other_classes_leave_it_behind_and_say_so(tmp_path):
    _, generative = both()
    with pytest.warns(UserWarning, match="left behind"):
        assert replace_head(generative, gmmseg.models.heads.HEAD_PRESETS["default"]).companion is None
    generative.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="left behind"):
        assert gmmseg.build(str(tmp_path), class_names=NAMES[:3]).companion is None
    assert gmmseg.build(str(tmp_path), class_names=NAMES).companion is not None
