"""Folded mixtures and coordinates are the ones they were made of, for every kind of either."""

import pytest
import torch
from torch import nn

from gmmseg.mixture import ClassMixture, folded, make_coordinates, make_link
from gmmseg.mixture.coordinates import COORDINATES
from gmmseg.mixture.folded import FoldedCoordinates, FoldedMixture

B, C, K, D, H, W = 2, 4, 3, 6, 5, 7


def fitted(mixture: ClassMixture, generator: torch.Generator) -> ClassMixture:
    """The mixture with means, variances and weights that differ."""
    mixture.means.normal_(generator=generator)
    mixture.variances.uniform_(0.2, 2.0, generator=generator)
    weights = torch.rand(mixture.log_weights.shape, generator=generator)
    mixture.log_weights.copy_((weights / weights.sum(1, keepdim=True)).log())
    return mixture


def rows_of(maps):
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


@pytest.mark.parametrize("winner", [True, False])
@pytest.mark.parametrize("components", [1, K])
@pytest.mark.parametrize("classes", [C, folded._MANY - 1, folded._MANY + 1])
def test_evidence_is_the_sum_of_torchs_own_densities(generator, winner, components, classes):
    mixture = fitted(ClassMixture(classes, components, D, winner=winner), generator)
    points = 3 * torch.randn(B, D, H, W, generator=generator)
    normals = torch.distributions.Normal(mixture.means.double(), mixture.variances.double().sqrt())
    each = normals.log_prob(rows_of(points).double()[:, None, None]).sum(-1) + mixture.log_weights
    expected = each.amax(-1) if winner else each.logsumexp(-1)
    found = rows_of(FoldedMixture(mixture)(points))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_evidence_far_from_the_origin_does_not_cancel(generator):
    mixture = fitted(ClassMixture(C, K, D), generator)
    points = torch.randn(B, D, H, W, generator=generator)
    here = FoldedMixture(mixture)(points)
    mixture.means += 1000.0
    torch.testing.assert_close(FoldedMixture(mixture)(points + 1000.0), here, rtol=1e-3, atol=1e-2)


def test_a_feature_without_length_stays_where_the_coordinates_leave_it():
    coordinates = make_coordinates("sphere", D)
    assert not FoldedCoordinates(coordinates)(torch.zeros(1, D, 1, 1)).any()


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("name", COORDINATES)
def test_points_are_those_of_the_coordinates(generator, name, projected):
    coordinates = make_coordinates(name, D)
    if name == "whitened":
        coordinates.centre.normal_(generator=generator)
        coordinates.basis.normal_(generator=generator)
    projection = nn.Linear(9, coordinates.feature_channels) if projected else None
    channels = 9 if projected else coordinates.feature_channels
    features = torch.randn(B, channels, H, W, generator=generator)
    expected = coordinates(rows_of(features), projection)
    found = FoldedCoordinates(coordinates, projection)(features)
    torch.testing.assert_close(rows_of(found), expected, rtol=1e-5, atol=1e-5)


def test_what_is_folded_stays_when_em_moves_the_mixture(generator):
    mixture = fitted(ClassMixture(C, K, D, coordinates=make_coordinates("whitened", D)), generator)
    evidence, points = FoldedMixture(mixture), FoldedCoordinates(mixture.coordinates)
    features = torch.randn(B, D - 1, H, W, generator=generator)
    before = evidence(points(features))
    mixture.means.zero_()
    mixture.coordinates.basis.zero_()
    assert torch.equal(evidence(points(features)), before)


@pytest.mark.parametrize("name", ["bayes", "class_norm", "affine"])
def test_a_link_says_the_same_of_maps_and_of_rows(generator, name):
    link = make_link(name, C, temperature=0.3)
    for parameter in link.parameters():
        parameter.data.uniform_(-1, 1, generator=generator)
    evidence, log_prior = torch.randn(B, C, H, W, generator=generator), torch.randn(C, generator=generator)
    torch.testing.assert_close(rows_of(link.on_maps(evidence, log_prior)), link(rows_of(evidence), log_prior))
