"""Segmenters with other classes: what stays is the same bit for bit, what is saved comes back."""

import json

import pytest
import torch

import gmmseg
from gmmseg.models import HeadSettings, Segmenter, WeightsError, from_pretrained
from gmmseg.models.calibration_file import PIXELS, Calibration, Threshold
from gmmseg.models.class_changes import Samples, link_terms, set_log_prior_, with_class
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.saving import digest

NAMES = ("road", "sky", "car", "tree")


def made(head=None, names=NAMES, network="tiny_unet"):
    """A segmenter whose mixtures are random, and not as they started."""
    torch.manual_seed(0)
    model = gmmseg.build(network, class_names=names, head=head or HeadSettings(components=3, dim=8)).eval()
    model.label_names, model.colours = names, tuple((60 * i, 10, 200) for i in range(len(names)))
    mixture = model.mixture
    mixture.variances.copy_(torch.rand_like(mixture.variances) * 0.1 + 0.05)
    mixture.log_weights.copy_(torch.randn_like(mixture.log_weights).log_softmax(-1))
    if head is None:
        torch.nn.init.normal_(model.head.link.offset)
    return model


def points_of(model, count=200):
    """Points as the model's own coordinates make them."""
    with torch.no_grad():
        rows = torch.randn(count, model.head.projection.in_features)
        return model.mixture.points(rows, model.head.projection)


@pytest.fixture
def model():
    return made()


@pytest.mark.parametrize("size", [(32, 48), (64, 64), (96, 160)])
@pytest.mark.parametrize("components", [None, 5])
def test_the_other_classes_answer_as_before(model, size, components):
    points = points_of(model, 600)
    added = model.with_class("cone", points, components=components)
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        before, after = model(images), added(images)
    assert torch.equal(after.evidence[:, :4], before.evidence)
    assert torch.equal(after.logits[:, :4], before.logits)
    assert torch.equal(after.log_densities[:, :4, :3], before.log_densities)
    assert after.logits.shape[1] == added.num_classes == 5
    assert added.label_names == (*NAMES, "cone")
    assert len(set(added.colours)) == 5
    assert model.num_classes == 4
    assert model.label_names == NAMES


def test_the_prior_is_the_mean_of_the_others_unless_it_is_given(model):
    points = points_of(model)
    priors = link_terms(model).offsets
    torch.testing.assert_close(link_terms(model.with_class("cone", points)).offsets[-1], priors.mean())
    given = model.with_class("cone", points, offset=-7.5)
    torch.testing.assert_close(link_terms(given).offsets[-1], torch.tensor(-7.5))
    set_log_prior_(given, -1, 2.0)
    torch.testing.assert_close(link_terms(given).offsets, torch.cat([priors, torch.tensor([2.0])]))


@pytest.mark.parametrize("components", [None, 5])
def test_what_is_saved_comes_back(model, tmp_path, components):
    twice = model.with_class("cone", points_of(model, 600), components=components)
    twice = twice.with_class("cat", points_of(model, 20))
    twice.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        assert torch.equal(again(images).logits, twice(images).logits)
        assert torch.equal(again(images).logits[:, :4], model(images).logits)
    assert again.label_names == (*NAMES, "cone", "cat")
    assert again.mixture.groups == twice.mixture.groups == ((4, 3), (1, components or 3), (1, 1))


@pytest.mark.parametrize("groups", [[[4, 3]], [[5, 3], [1, 1]], "x", [[4, 3], [1]], [[4.0, 3], [1, 1]], 7])
def test_groups_that_cannot_be_are_refused(model, tmp_path, groups):
    model.with_class("cone", points_of(model, 20)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["groups"] = {"head": groups}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"config\.json: the entry groups is not understood"):
        from_pretrained(tmp_path)


def test_weights_of_earlier_versions_have_no_groups(model, tmp_path):
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["groups"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert from_pretrained(tmp_path).mixture.groups == ((4, 3),)


def test_a_density_beside_the_head_knows_the_class_too(model, tmp_path):
    density = CellDensity(4, DensitySettings(2, 6)).eval()
    density.mixture.variances.mul_(0.3)
    model.density = density
    maps = torch.randn(1, 6, 5, 7)
    with pytest.raises(ValueError, match="a density beside its head"):
        model.with_class("cone", points_of(model))
    added = with_class(model, "cone", Samples(points_of(model), torch.randn(300, 6)), components=4)
    with torch.no_grad():
        assert torch.equal(added.density(maps)[:, :4], density(maps))
    added.save_pretrained(tmp_path)
    assert torch.equal(from_pretrained(tmp_path).density(maps), added.density(maps))
    assert added.without_class("sky").density(maps).shape[1] == 4
    assert added.with_classes_merged("sky", "cone").density(maps).shape[1] == 4


def test_a_removed_class_is_gone_and_the_others_stay(model):
    images = torch.rand(1, 3, 64, 64)
    less = model.without_class("Sky")
    with torch.no_grad():
        torch.testing.assert_close(
            less(images).logits, model(images).logits[:, [0, 2, 3]], rtol=1e-4, atol=1e-4
        )
    assert less.label_names == ("road", "car", "tree")
    assert less.colours == tuple(model.colours[i] for i in (0, 2, 3))


def test_another_name_changes_no_weight_and_keeps_the_calibration(model, tmp_path):
    model.calibration = Calibration(digest(model), {PIXELS: Threshold(1.0, 0.05)}, 2.0, None, None, None)
    renamed = model.with_class_renamed("car", "vehicle")
    assert renamed.label_names == ("road", "sky", "vehicle", "tree")
    assert model.label_names == NAMES
    renamed.save_pretrained(tmp_path)
    assert from_pretrained(tmp_path).calibration == model.calibration


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_two_classes_as_one_have_at_least_the_larger_and_at_most_both_scores(temperature):
    model = made()
    with torch.no_grad():
        model.head.link.log_temperature.fill_(temperature).log_()
    images = torch.rand(1, 3, 32, 32)
    both = model.with_classes_merged("car", "road", to="ground")
    with torch.no_grad():
        before, after = model(images).logits, both(images).logits
    assert both.label_names == ("sky", "ground", "tree")
    parts = before[:, [2, 0]]
    assert bool((after[:, 1] >= parts.amax(1) - 1e-3).all())
    assert bool((after[:, 1] <= parts.logsumexp(1) + 1e-3).all())
    torch.testing.assert_close(after[:, [0, 2]], before[:, [1, 3]], rtol=1e-4, atol=1e-4)
    if temperature == 1:  # Bayes' rule as it stands
        torch.testing.assert_close(
            after.softmax(1)[:, 1], before.softmax(1)[:, [0, 2]].sum(1), rtol=1e-3, atol=1e-3
        )


def test_a_calibration_stays_with_the_weights_it_was_found_for(model):
    model.calibration = Calibration("w", {PIXELS: Threshold(1.0, 0.05)}, 2.0, None, None, None)
    added = model.with_class("cone", points_of(model))
    for changed in (added, model.without_class("car"), model.with_classes_merged("car", "road")):
        assert changed.calibration is None
    assert model.calibration is not None


def test_a_network_of_another_library():
    model = made(network="smp:Unet/resnet18")
    added = model.with_class("cone", points_of(model))
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(added(images).logits[:, :4], model(images).logits)


def test_a_segmenter_assembled_by_hand(model):
    assembled = Segmenter(model.features, model.head).eval()
    added = assembled.with_class("cone", points_of(model))
    assert added.label_names == ("class 0", "class 1", "class 2", "class 3", "cone")
    assert added.recipe is None
    with torch.no_grad():
        images = torch.rand(1, 3, 32, 32)
        assert torch.equal(added(images).logits[:, :4], assembled(images).logits)
    auxiliary = Segmenter(model.features, model.head, auxiliary_heads=(torch.nn.Conv2d(3, 4, 1),))
    with pytest.raises(ValueError, match="assembled by hand with auxiliary heads"):
        auxiliary.with_class("cone", points_of(model))


def test_names_that_exist_or_do_not(model):
    points = points_of(model)
    for name in ("car", "CAR", " "):
        with pytest.raises(ValueError, match=r"there is a class 'car' already|needs a name"):
            model.with_class(name, points)
    for name in ("a\nb", "\x1b[31mred", "a\u2028b"):
        with pytest.raises(ValueError, match="one line, without control characters"):
            model.with_class_renamed("car", name)
    assert model.with_class_renamed("car", "car/lorry, grün").label_names[2] == "car/lorry, grün"
    with pytest.raises(ValueError, match="already"):
        model.with_class_renamed("car", "sky")
    assert model.with_class_renamed("car", "Car").label_names[2] == "Car"
    with pytest.raises(ValueError, match=r"no class 'caar'; did you mean car\?; the classes are road"):
        model.without_class("caar")
    with pytest.raises(ValueError, match="the same class"):
        model.with_classes_merged("car", "car")
    with pytest.raises(ValueError, match="already"):
        model.with_classes_merged("car", "road", to="sky")
    with pytest.raises(ValueError, match="only class"):
        made(names=("road",)).without_class("road")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("softmax", "has no density .* gmmseg fit MODEL --on features"),
        ("reference", "class_norm link"),
        (HeadSettings(discriminative=True, coordinates="pole", dim=8), "discriminative"),
    ],
)
def test_heads_that_have_no_place_for_another_class(head, reason):
    model = gmmseg.build("tiny_unet", class_names=NAMES, head=head).eval()
    for change in (
        lambda: model.with_class("cone", torch.zeros(1, 8)),
        lambda: model.without_class("car"),
        lambda: model.with_classes_merged("car", "sky"),
    ):
        with pytest.raises(ValueError, match=reason):
            change()
    assert model.with_class_renamed("car", "cart").label_names[2] == "cart"
