import pytest
import torch

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture
from gmmseg.models.outputs import SegmenterOutput
from gmmseg.models.pairing import PairedMaps, shrink_labels

B, C, K, D, H, W = 2, 3, 2, 4, 4, 6


@pytest.fixture
def paired(generator: torch.Generator) -> PairedMaps:
    mixture = ClassMixture(C, K, D)
    points = torch.randn(B, D, H, W, generator=generator, requires_grad=True)
    evidence = torch.stack([mixture(each.flatten(1).T).T.unflatten(1, (H, W)) for each in points])
    labels = torch.randint(0, C, (B, 2 * H, 2 * W), generator=generator)
    labels[0, :3] = IGNORE
    return PairedMaps(SegmenterOutput(3 * evidence, points, evidence, mixture), labels, align_corners=False)


def test_points_are_cells_with_the_label_at_their_centre(paired: PairedMaps) -> None:
    each = paired.points
    n = 0
    for b in range(B):
        for h in range(H):
            for w in range(W):
                assert torch.equal(each.classified.points[n], paired.output.points[b, :, h, w])
                assert torch.equal(each.classified.logits[n], paired.output.logits[b, :, h, w])
                assert torch.equal(each.classified.evidence[n], paired.output.evidence[b, :, h, w])
                assert each.classified.images[n] == b
                assert each.labels[n] == paired.labels[b, 2 * h + 1, 2 * w + 1]
                n += 1
    assert n == len(each.labels)


def test_em_hears_which_points_are_classified_correctly_and_sends_no_gradient(paired: PairedMaps) -> None:
    points, labels, _, correct = paired.points.for_em()
    assert not points.requires_grad
    for n, right in enumerate(correct.tolist()):
        assert right == (paired.points.classified.logits[n].argmax() == labels[n])


def test_labels_are_paired_once(paired: PairedMaps, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "gmmseg.models.pairing.shrink_labels", lambda *given: calls.append(given) or shrink_labels(*given)
    )
    assert set(paired.losses(("component", "likelihood"))) == {"posterior", "component", "likelihood"}
    paired.points.for_em()
    assert len(calls) == 1


def test_points_without_a_mixture_have_no_terms(paired: PairedMaps) -> None:
    softmax = SegmenterOutput(paired.output.logits, paired.output.points)
    alone = PairedMaps(softmax, paired.labels, align_corners=False)
    assert set(alone.losses(("component", "likelihood"))) == {"posterior"}
    assert alone.points.terms(("component", "likelihood"), None) == {}


def test_labels_shrink_without_inventing_any(generator: torch.Generator) -> None:
    labels = torch.randint(0, 255, (1, 9, 13), generator=generator)
    small = shrink_labels(labels, (4, 5))
    assert small.dtype == labels.dtype
    assert set(small.unique().tolist()) <= set(labels.unique().tolist())
