"""The light decoder: coarse maps are convolved before they are resized, and nothing but the time changes."""

import pytest
import torch

import gmmseg
from gmmseg.models.features import resize


@pytest.mark.parametrize("size", [(96, 160), (90, 154)])
def test_it_convolves_what_resized_and_joined_maps_would_be(size):
    torch.manual_seed(0)
    features = gmmseg.build("light_efficientnet_lite0", num_classes=3).features.eval()
    with torch.no_grad():
        features.reduce[1].running_mean.uniform_(-1, 1)
        images = torch.rand(2, 3, *size).contiguous(memory_format=torch.channels_last)
        maps = features.backbone_maps(images)
        assert len({each.shape[-2:] for each in maps}) > 2, "maps of several scales"
        cells = tuple(-(-side // 8) for side in size)
        joined = torch.cat([resize(each, cells) for each in maps], dim=1)
        expected = features.refine(features.reduce(joined))
        found = features.decode(maps, size).main
    assert found.is_contiguous(memory_format=torch.channels_last), "a head would copy it"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_the_convolution_is_that_of_the_joined_maps():
    torch.manual_seed(0)
    features = gmmseg.build("light_efficientnet_lite0", num_classes=3).features.eval()
    maps = features.backbone_maps(torch.rand(1, 3, 64, 96))
    weight = features.reduce[0].weight
    joined = torch.cat([resize(each, (8, 12)) for each in maps], dim=1)
    expected = torch.autograd.grad(features.refine(features.reduce(joined)).square().sum(), weight)[0]
    found = torch.autograd.grad(features.decode(maps, (64, 96)).main.square().sum(), weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
