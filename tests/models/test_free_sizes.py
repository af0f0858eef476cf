"""Layers made ready for graphs of any size say what the originals say, bit for bit or but for rounding."""

import copy

import pytest
import torch
from torch import nn

import gmmseg
from gmmseg.models.free_sizes import PooledByProducts, SamePaddedConv2d, free_sizes_

SIZES = [(1, 1), (2, 7), (6, 6), (13, 17), (24, 35)]


@pytest.mark.parametrize("cells", [2, 6, (1, 5)])
@pytest.mark.parametrize("size", SIZES)
def test_products_pool_as_torch_does(cells, size):
    pooling = nn.AdaptiveAvgPool2d(cells)
    maps = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = pooling(maps)
    torch.testing.assert_close(free_sizes_(pooling)(maps), expected, rtol=1e-12, atol=1e-12)
    assert type(pooling) is PooledByProducts


def test_pooling_to_one_cell_or_to_the_same_size_stays_as_it_is():
    for cells in (1, (1, 1), (None, 3), None):
        assert type(free_sizes_(nn.AdaptiveAvgPool2d(cells))) is nn.AdaptiveAvgPool2d


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 1), (1, 2, 1), (3, 1, 2), (4, 3, 1), (3, 2, (1, 2))]
)
def test_same_padding_is_that_of_timm_bit_for_bit(kernel, stride, dilation):
    conv2d_same = pytest.importorskip("timm.layers").Conv2dSame
    torch.manual_seed(0)
    original = conv2d_same(3, 4, kernel, stride, dilation=dilation)
    exchanged = free_sizes_(copy.deepcopy(original))
    assert type(exchanged) is SamePaddedConv2d
    for size in SIZES[2:]:
        maps = torch.randn(1, 3, *size)
        assert torch.equal(exchanged(maps), original(maps)), size


def test_windows_with_gaps_between_them_are_left_to_timm():
    conv2d_same = pytest.importorskip("timm.layers").Conv2dSame
    assert type(free_sizes_(conv2d_same(3, 4, 2, 3))) is conv2d_same


def test_a_swin_transformer_says_the_same_at_odd_sizes():
    from transformers import SwinBackbone

    from gmmseg.models.huggingface import swin_config

    torch.manual_seed(0)
    backbone = SwinBackbone(swin_config(8, [1, 1, 1, 1], [1, 1, 2, 2], 3)).eval()
    images = torch.randn(1, 3, 132, 140)  # 33 x 35 cells, then 17 x 18, 9 x 9, 5 x 5
    with torch.no_grad():
        expected = backbone(images).feature_maps
        found = free_sizes_(backbone)(images).feature_maps
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_the_network_that_is_exported_keeps_its_layers():
    from gmmseg.inference.export_graph import ExportGraph, symbolic_sides

    segmenter = gmmseg.build("light_efficientnet_lite0", num_classes=3, preset="softmax").eval()
    graph = ExportGraph(segmenter, symbolic_sides)
    kinds = {type(layer) for layer in graph.modules()}
    assert SamePaddedConv2d in kinds
    assert SamePaddedConv2d not in {type(layer) for layer in segmenter.modules()}
    assert {id(each) for each in graph.network.features.parameters()} == {
        id(each) for each in segmenter.features.parameters()
    }
