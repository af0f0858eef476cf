"""A folded segmenter is the segmenter, for every head; and a compiler takes either head in one piece."""

from dataclasses import replace

import pytest
import torch

import gmmseg
from gmmseg.models import HEAD_PRESETS, HeadSettings
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.folding import FoldedHead, folded
from gmmseg.models.heads import make_head

HEADS = {
    **HEAD_PRESETS,
    "batch norm": HeadSettings(projection="batch_norm", coordinates="pole"),
    "as they are": HeadSettings(projection="none", coordinates="plain", dim=16),
    "discriminative": HeadSettings(coordinates="pole", discriminative=True),
}


def look_trained(head, generator):
    """Give every tensor of a head values of its own."""
    for name, value in head.state_dict().items():
        if value.is_floating_point():
            low, high = (0.2, 2.0) if "var" in name else (-1.0, 1.0)
            value.uniform_(low, high, generator=generator)
    return head.eval()


@pytest.mark.parametrize("name", [name for name in HEADS if name != "softmax"])
def test_a_folded_head_is_the_head(generator, name):
    head = look_trained(make_head(HEADS[name], 16, 5), generator)
    features = torch.randn(2, 16, 6, 7, generator=generator)
    with torch.no_grad():
        expected, found = head(features), FoldedHead(head)(features)
        for part in ("logits", "points", "evidence"):
            torch.testing.assert_close(getattr(found, part), getattr(expected, part), rtol=1e-4, atol=1e-4)
        rows = torch.randn(9, 16, generator=generator)
        torch.testing.assert_close(
            FoldedHead(head).classify(rows).logits, head.classify(rows).logits, rtol=1e-4, atol=1e-4
        )


def test_a_folded_segmenter_leaves_the_original_as_it_was(generator):
    segmenter = gmmseg.build("tiny_unet", num_classes=3).train()
    state = {name: value.clone() for name, value in segmenter.state_dict().items()}
    images = torch.rand(1, 3, 32, 48, generator=generator)
    twin = folded(segmenter)
    with torch.no_grad():
        logits = twin(images).logits
    assert segmenter.training
    assert all(parameter.requires_grad for parameter in segmenter.parameters())
    assert all(torch.equal(value, state[name]) for name, value in segmenter.state_dict().items())
    torch.testing.assert_close(logits, segmenter.eval()(images).logits, rtol=1e-4, atol=1e-4)


def test_a_folded_density_is_the_density_and_knows_what_it_never_saw(generator):
    segmenter = gmmseg.build("tiny_unet", num_classes=3).eval()
    channels = 16 + 32 + 64 + 96
    segmenter.density = CellDensity(3, DensitySettings(components=2, channels=channels))
    segmenter.density.coordinates.basis.normal_(generator=generator)
    segmenter.density.mixture.variances[:2].uniform_(0.5, 2, generator=generator)  # the third has no cell
    images = torch.rand(1, 3, 32, 48, generator=generator)
    with torch.no_grad():
        expected, found = segmenter(images).density_evidence, folded(segmenter)(images).density_evidence
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert bool((found[:, 2] == -torch.inf).all())
    assert bool(found[:, :2].isfinite().all())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", HEAD_PRESETS)
def test_a_compiler_takes_a_head_in_one_piece(generator, name, dynamic):
    """``fullgraph``: a graph break is an error. The graph is run as it is: nothing is compiled."""
    head = look_trained(make_head(replace(HEAD_PRESETS[name], dim=8), 16, 5), generator)
    torch._dynamo.reset()
    compiled = torch.compile(head, fullgraph=True, dynamic=dynamic, backend="eager")
    for size in ((6, 7), (3, 4)):
        features = torch.randn(2, 16, *size, generator=generator)
        with torch.no_grad():
            torch.testing.assert_close(compiled(features).logits, head(features).logits, rtol=1e-4, atol=1e-4)
