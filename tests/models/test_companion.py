"""Classifiers beside a head: all are asked."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gmmseg
from gmmseg.inference.export_graph import ExportGraph
from gmmseg.inference.windows import fitting
from gmmseg.models.companion import companion_of, joint_logits
from gmmseg.models.folding import folded
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
    generative.companions.append(companion_of(softmax.features, softmax.head, kind))
    return softmax, generative


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("size", [(64, 96), (33, 50)])
def test_its_logits_are_those_of_the_softmax_model(name, size):
    softmax, generative = both(name)
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        expected, pooled = softmax(images).logits, generative(images).logits
        generative.companions = nn.ModuleList()
        own = generative(images).logits
    assert_joint(pooled, [own, expected])


def assert_joint(logits, parts):
    """The posterior is the mean of the parts' posteriors, the energy the mean of their energies."""
    posteriors = torch.stack([part.softmax(1) for part in parts]).mean(0)
    torch.testing.assert_close(logits.softmax(1), posteriors, rtol=1e-4, atol=1e-6)
    energies = torch.stack([part.logsumexp(1) for part in parts]).mean(0)
    torch.testing.assert_close(logits.logsumexp(1), energies, rtol=1e-4, atol=1e-4)


def test_parts_that_are_sure_of_different_classes_leave_finite_logits():
    sure = torch.tensor([2000.0, 0.0, -3000.0]).view(1, 3, 1, 1)
    joint = joint_logits(sure, [(sure.flip(1), None)])
    torch.testing.assert_close(joint.softmax(1).flatten(), torch.tensor([0.5, 0.0, 0.5]))
    assert bool(joint.isfinite().all())


@pytest.mark.parametrize("kind", ["decoder", "head"])
@pytest.mark.parametrize("name", ["tiny_unet", "timm:test_resnet"])
def test_it_is_saved_without_a_second_backbone_and_loaded(tmp_path, name, kind):
    _, generative = both(name, kind)
    generative.save_pretrained(tmp_path)
    loaded = gmmseg.from_pretrained(tmp_path)
    assert loaded.companions[0].kind == kind
    assert not [each for each in loaded.companions[0].state_dict() if "backbone" in each]
    images = torch.rand(1, 3, 40, 56)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, generative(images).logits)


def test_training_leaves_it_alone_and_does_without_it():
    _, generative = both()
    kept = {name: each.clone() for name, each in generative.companions.state_dict().items()}
    generative.train()
    images = torch.rand(2, 3, 32, 48)
    logits = generative(images).logits
    logits.sum().backward()
    assert not generative.companions[0].training
    assert all(each.grad is None for each in generative.companions.parameters())
    assert all(torch.equal(each, kept[name]) for name, each in generative.companions.state_dict().items())


def test_a_new_class_has_the_odds_that_the_head_gives_it():
    """Against all that the companion knows; among those it is heard as before."""
    softmax, generative = both()
    images = torch.rand(1, 3, 32, 48)
    alone = gmmseg.models.conversion.share_weights(generative)
    alone.companions = nn.ModuleList()
    new = points(generative, 50)
    with torch.no_grad():
        changed = generative.with_class("cone", new)
        own = alone.with_class("cone", new)(images).logits.softmax(1)
        together, other = changed(images).logits.softmax(1), softmax(images).logits.softmax(1)
    for cell in ((0, 0), (3, 5)):
        mine, theirs = own[(0, slice(None), *cell)], other[(0, slice(None), *cell)]
        full = torch.cat([theirs * (1 - mine[4]), mine[4:]])
        found = together[(0, slice(None), *cell)]
        torch.testing.assert_close(found, (mine + full) / 2, rtol=1e-4, atol=1e-6)


def test_classes_that_go_or_are_joined_do_so_in_the_companion_too(tmp_path):
    softmax, generative = both()
    images = torch.rand(1, 3, 32, 48)
    alone = gmmseg.models.conversion.share_weights(generative)
    alone.companions = nn.ModuleList()
    with torch.no_grad():
        theirs = softmax(images).logits
        gone = generative.without_class("sky")(images).logits
        without = alone.without_class("sky")(images).logits
        assert_joint(gone, [without, theirs[:, [0, 2, 3]]])
        both_as_one = generative.with_classes_merged("road", "tree")
        expected = alone.with_classes_merged("road", "tree")(images).logits
        joined = torch.stack([theirs[:, [0, 2]].logsumexp(1), theirs[:, 1], theirs[:, 3]], 1)
        assert_joint(both_as_one(images).logits, [expected, joined])
        # Twice, and through a file.
        twice = both_as_one.with_class("cone", points(generative, 50)).without_class("sky")
        twice.save_pretrained(tmp_path)
        loaded = gmmseg.from_pretrained(tmp_path)
        assert loaded.companions[0].members == ((0, 2), (3,), ())
        assert torch.equal(loaded(images).logits, twice(images).logits)
    renamed = generative.with_class_renamed("car", "van")
    with torch.no_grad():
        assert torch.equal(renamed(images).logits, generative(images).logits)


def test_a_class_that_is_known_in_part_has_the_odds_that_the_head_gives_it():
    """An added class taken into a known one: what the head says of both is heard."""
    softmax, generative = both()
    new, images = points(generative, 50), torch.rand(1, 3, 32, 48)
    alone = gmmseg.models.conversion.share_weights(generative)
    alone.companions = nn.ModuleList()
    with torch.no_grad():
        merged, own = (
            each.with_class("cone", new, offset=4.0)
            .with_classes_merged("road", "cone")(images)
            .logits.softmax(1)
            for each in (generative, alone)
        )
        others = softmax(images).logits[:, 1:].softmax(1)
    torch.testing.assert_close(merged[:, 0], own[:, 0], rtol=1e-4, atol=1e-6)
    expected = (own[:, 1:] + others * (1 - own[:, :1])) / 2
    torch.testing.assert_close(merged[:, 1:], expected, rtol=1e-4, atol=1e-6)


def test_a_companion_that_knows_no_class_any_more_is_left_behind():
    _, generative = both()
    changed = generative.with_class("cone", points(generative, 50))
    for name in NAMES[:3]:
        changed = changed.without_class(name)
    assert len(changed.companions) == 1
    with pytest.warns(UserWarning, match="left behind"):
        last = changed.without_class("car")
    with torch.no_grad():
        assert last(torch.rand(1, 3, 32, 48)).logits.shape[1] == 1
    assert len(generative.companions) == 1


def test_a_class_change_leaves_the_segmenter_given_as_it_was():
    first, _ = committee()
    first.train()
    first.without_class("sky")
    assert first.companions[0].training
    assert all(each.requires_grad for each in first.companions[0].parameters())
    assert first.companions[0].members is None


def test_a_segmenter_with_companions_can_be_filled_again(tmp_path):
    first, _ = committee()
    first.save_pretrained(tmp_path)
    filled = gmmseg.from_pretrained(tmp_path, architecture=gmmseg.from_pretrained(tmp_path))
    images = torch.rand(1, 3, 32, 48)
    with torch.no_grad():
        assert torch.equal(filled(images).logits, first(images).logits)


def committee(name="tiny_unet", count=3):
    """A generative model with ``count`` decoders, all mixtures fitted."""
    torch.manual_seed(0)
    models = [gmmseg.build(name, class_names=NAMES).eval() for _ in range(count)]
    for model in models:
        model.features.backbone.load_state_dict(models[0].features.backbone.state_dict())
        model.mixture.fit(points(model, 400), torch.arange(400) % 4, passes=1)
    first, *others = models
    settings = gmmseg.models.heads.HEAD_PRESETS["default"]
    for other in others:
        first.companions.append(companion_of(other.features, other.head, "decoder", settings, learns=True))
    return first, others


@pytest.mark.parametrize("name", ZOO)
def test_several_generative_heads_are_one_model_saved_and_exported(tmp_path, name):
    first, others = committee(name)
    images = torch.rand(2, 3, 50, 70)
    with torch.no_grad():
        logits = first(images).logits
        each = [other(images).logits for other in others]
        first.save_pretrained(tmp_path)
        loaded = gmmseg.from_pretrained(tmp_path)
        assert torch.equal(loaded(images).logits, logits)
        torch.testing.assert_close(folded(first)(images).logits, logits, rtol=1e-3, atol=1e-3)
        first.companions = nn.ModuleList()
        assert_joint(logits, [first(images).logits, *each])
    assert not any(parameter.requires_grad for parameter in loaded.companions.parameters())
    assert "2 more generative classifiers beside it" in (tmp_path / "README.md").read_text()


def test_a_file_from_before_there_could_be_several_is_read(tmp_path):
    _, generative = both()
    generative.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["companions"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "companion": "decoder"}))
    path = tmp_path / "model.safetensors"
    state = {name.replace("companions.0.", "companion."): each for name, each in load_file(path).items()}
    save_file(state, path)
    images = torch.rand(1, 3, 40, 56)
    with torch.no_grad():
        assert torch.equal(gmmseg.from_pretrained(tmp_path)(images).logits, generative(images).logits)
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.warns(UserWarning, match="in another way, and is not used"):
        assert gmmseg.from_pretrained(tmp_path).calibration is None


def test_the_exported_graph_asks_both():
    _, generative = both()
    images = torch.rand(1, 3, 64, 96)
    graph = ExportGraph(generative, lambda h, w, stride: fitting((h, w), stride), posterior=True).eval()
    with torch.no_grad():
        posterior = graph(images, torch.tensor(0.0))[-1]
        logits = torch.nn.functional.interpolate(generative(images).logits, size=(64, 96), mode="bilinear")
    torch.testing.assert_close(posterior, logits.softmax(1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "friend"},
        {"kind": ["decoder"]},
        {"head": {"kind": "softmax", "taste": 1}},
        {"head": None},
        {"num_classes": 3},
        {"num_classes": "4"},
        {"num_classes": 10**9},
        {"num_classes": True},
        {"members": [[0], [1], [2]]},
        {"members": [[], [], [], []]},
        {"members": [[0], [1], [2], [4]]},
        {"members": [[0], [1], [2], [-1]]},
        {"members": [[0], [1], [2], [2]]},
        {"members": [[0, 0], [1], [2], [3]]},
        {"members": 4},
    ],
)
def test_a_damaged_entry_is_refused(tmp_path, change):
    _, generative = both()
    generative.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["companions"][0] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        WeightsError, match=r"config.json: the entry companions is not understood or does not"
    ):
        gmmseg.from_pretrained(tmp_path)


def test_more_companions_than_anybody_trains_are_refused_at_once(tmp_path):
    _, generative = both()
    generative.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["companions"] *= 10_000
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="10000 of them"):
        gmmseg.from_pretrained(tmp_path)


@pytest.mark.parametrize("entry", ["friend", ["decoder"], 3, [7], {"kind": "head"}])
def test_an_entry_of_another_kind_is_refused(tmp_path, entry):
    _, generative = both()
    generative.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("companion", "companions"):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: entry}))
        with pytest.raises(WeightsError, match="not understood"):
            gmmseg.from_pretrained(tmp_path)


def test_what_has_no_such_parts_is_refused():
    _, generative = both()
    with pytest.raises(ValueError, match="not of the kind softmax"):
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
        assert len(replace_head(generative, gmmseg.models.heads.HEAD_PRESETS["default"]).companions) == 0
    generative.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="left behind"):
        assert len(gmmseg.build(str(tmp_path), class_names=NAMES[:3]).companions) == 0
    assert gmmseg.build(str(tmp_path), class_names=NAMES).companions
