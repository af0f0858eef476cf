import itertools
from dataclasses import asdict
from typing import get_args, get_type_hints

import pytest
import torch
from torch.distributions import Independent, Normal

from gmmseg.mixture import ClassMixture, Pole, Sphere, WhitenedSphere, make_coordinates
from gmmseg.mixture.coordinates import COORDINATES
from gmmseg.models.heads import (
    HEAD_PRESETS,
    GMMHead,
    HeadSettings,
    SoftmaxHead,
    head_settings,
    make_head,
    make_projection,
    present_words,
)

C, K, D, F = 3, 2, 4, 6


def mixture(generator: torch.Generator, *, winner: bool = True) -> ClassMixture:
    made = ClassMixture(C, K, D, winner=winner)
    made.means.copy_(torch.randn(C, K, D, generator=generator))
    made.variances.copy_(0.5 + torch.rand(C, K, D, generator=generator))
    return made


@pytest.mark.parametrize("winner", [True, False])
def test_head_equals_a_loop_over_pixels(generator: torch.Generator, winner: bool) -> None:
    head = GMMHead(F, mixture(generator, winner=winner), projection="linear", link="bayes")
    features = torch.randn(2, F, 3, 5, generator=generator)
    with torch.no_grad():
        output = head(features)
    for b, h, w in [(0, 0, 0), (1, 2, 4), (0, 1, 3)]:
        point = head.projection(features[b, :, h, w])
        torch.testing.assert_close(output.points[b, :, h, w], point)
        for c in range(C):
            components = Normal(head.mixture.means[c], head.mixture.variances[c].sqrt())
            log_densities = Independent(components, 1).log_prob(point)
            torch.testing.assert_close(
                output.log_densities[b, c, :, h, w], log_densities, rtol=1e-4, atol=1e-4
            )
            weighted = log_densities + torch.tensor(1 / K).log()
            evidence = weighted.max() if winner else weighted.logsumexp(0)
            torch.testing.assert_close(output.evidence[b, c, h, w], evidence, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.logits.softmax(1), output.evidence.softmax(1))  # uniform prior


@pytest.mark.parametrize("name", HEAD_PRESETS)
def test_maps_and_rows_agree(generator: torch.Generator, name: str) -> None:
    head = make_head(head_settings(name), F, C).eval()
    features = torch.randn(2, F, 3, 5, generator=generator)
    with torch.no_grad():
        maps, rows = head(features), head.classify(features.permute(0, 2, 3, 1).reshape(-1, F))
    torch.testing.assert_close(maps.logits.permute(0, 2, 3, 1).reshape(-1, C), rows.logits)
    torch.testing.assert_close(maps.points.permute(0, 2, 3, 1).flatten(0, 2), rows.points)


def test_channels_last_is_never_copied(generator: torch.Generator) -> None:
    head = make_head(HeadSettings(dim=D, components=K), F, C)
    features = torch.randn(2, F, 3, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    seen = []
    head.mixture.coordinates.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    output = head(features)
    assert seen[0].data_ptr() == features.data_ptr()
    for maps in (output.logits, output.points, output.evidence):
        assert maps.is_contiguous(memory_format=torch.channels_last)


def test_gradient_reaches_the_network_and_never_a_mixture(generator: torch.Generator) -> None:
    features = torch.randn(2, F, 3, 5, generator=generator, requires_grad=True)
    em, gradient = (
        make_head(HeadSettings(dim=D, components=K, coordinates="pole", discriminative=flag), F, C)
        for flag in (False, True)
    )
    for head in (em, gradient):
        head(features).logits.sum().backward()
    assert features.grad.abs().sum() > 0
    assert not em.mixture.means.requires_grad
    assert em.mixture.variances.grad is None
    assert any(value.grad is not None for value in gradient.mixture.parameters())


PROJECTIONS = ("none", "linear", "batch_norm", "reference")
NONSENSE = {("batch_norm", "whitened"), ("reference", "pole"), ("reference", "whitened")}
SENSIBLE = [each for each in itertools.product(PROJECTIONS, COORDINATES) if each not in NONSENSE]


@pytest.mark.parametrize(("projection", "coordinates"), SENSIBLE)
def test_every_sensible_combination_makes_points_its_mixture_accepts(
    generator: torch.Generator, projection: str, coordinates: str
) -> None:
    dim = F + (coordinates in ("pole", "whitened")) if projection == "none" else 16
    torch.manual_seed(0)
    head = make_head(HeadSettings(dim=dim, projection=projection, coordinates=coordinates), F, C)
    points = head.classify(30 * torch.randn(10, F, generator=generator)).points
    assert points.shape == (10, dim)
    head.mixture.coordinates.check(points)
    if coordinates != "plain":
        torch.testing.assert_close(points.norm(dim=-1), torch.ones(10))


@pytest.mark.parametrize(("projection", "coordinates"), sorted(NONSENSE))
def test_senseless_combinations_cannot_be_built(projection: str, coordinates: str) -> None:
    with pytest.raises(ValueError, match=f"{projection} with coordinates {coordinates}: .*: choose"):
        HeadSettings(projection=projection, coordinates=coordinates)
    with pytest.raises(ValueError, match=f"{projection} with coordinates {coordinates}: .*: choose"):
        GMMHead(F, ClassMixture(C, K, D, coordinates=make_coordinates(coordinates, D)), projection=projection)


def test_a_discriminative_mixture_cannot_be_whitened() -> None:
    with pytest.raises(ValueError, match=r"only EM can fit whitened coordinates.*choose coordinates pole"):
        HeadSettings(discriminative=True)


@pytest.mark.parametrize(
    ("coordinates", "features", "bias"),
    [(Sphere(D), D, True), (Pole(D), D - 1, True), (WhitenedSphere(D), D - 1, False)],
)
def test_the_projection_fits_the_coordinates(coordinates, features: int, bias: bool) -> None:
    """An offset that whitening takes away again is no weight to learn."""
    head = GMMHead(F, ClassMixture(C, K, D, coordinates=coordinates), projection="linear")
    assert (head.projection.out_features, head.projection.bias is not None) == (features, bias)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("none", ("none", "plain")),
        ("linear", ("linear", "plain")),
        ("l2", ("linear", "sphere")),
        ("whitened", ("linear", "whitened")),
        ("pole", ("batch_norm", "pole")),
        ("reference", ("reference", "sphere")),
    ],
)
def test_settings_of_earlier_versions_keep_their_meaning(old: str, new: tuple[str, str]) -> None:
    settings = HeadSettings(**present_words({"components": 3, "projection": old}))
    assert (settings.projection, settings.coordinates, settings.components) == (*new, 3)
    assert present_words(asdict(settings)) == asdict(settings), "those of this version stay"


def test_settings_without_a_projection_or_with_an_unknown_one_stay_as_they_are() -> None:
    for settings in (
        {"components": 3},
        {"projection": "batch_norm"},
        {"projection": "cosine"},
        {"projection": []},
    ):
        assert present_words(settings) == settings
    with pytest.raises(ValueError, match="projection must be one of none, linear, batch_norm, reference"):
        HeadSettings(**present_words({"projection": "l2", "coordinates": "sphere"}))


def test_no_projection_leaves_the_features(generator: torch.Generator) -> None:
    features = torch.randn(10, F, generator=generator)
    assert torch.equal(make_projection("none", F, F)(features), features)
    with pytest.raises(ValueError, match="need features of 4 channels, not 6: choose another dim"):
        make_projection("none", F, D)


def test_softmax_head_is_one_convolution(generator: torch.Generator) -> None:
    head = SoftmaxHead(F, C)
    features = torch.randn(2, F, 3, 5, generator=generator)
    output = head(features)
    expected = torch.einsum("cf,bfhw->bchw", head.classifier.weight[:, :, 0, 0], features)
    torch.testing.assert_close(output.logits, expected + head.classifier.bias[:, None, None])
    assert output.points is features
    assert output.evidence is None


def test_presets_are_the_three_forms_of_the_method() -> None:
    chosen = {name: (each.projection, each.coordinates, each.link) for name, each in HEAD_PRESETS.items()}
    assert chosen["paper"] == ("linear", "plain", "bayes")
    assert chosen["reference"] == ("reference", "sphere", "class_norm")
    assert chosen["default"] == ("linear", "whitened", "affine")
    assert head_settings("gmm") == HEAD_PRESETS["default"]


def test_the_words_of_the_settings_are_those_of_the_mixture() -> None:
    assert get_args(get_type_hints(HeadSettings)["coordinates"]) == tuple(COORDINATES)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"unknown projection 'cosine'.*linear"):
        make_projection("cosine", F, D)
    with pytest.raises(ValueError, match="kind must be one of gmm, softmax"):
        HeadSettings(kind="svm")
    with pytest.raises(ValueError, match="link must be one of bayes, class_norm, affine"):
        make_head(HeadSettings(link="probit"), F, C)
