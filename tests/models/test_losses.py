import pytest
import torch

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture
from gmmseg.models.losses import (
    component_cross_entropy,
    cross_entropy,
    divergence_from_teacher,
    own_negative_log_likelihood,
)

C, K, D = 3, 2, 4


@pytest.mark.parametrize("winner", [True, False])
@pytest.mark.parametrize(("c", "k"), [(C, K), (64, 5)])
def test_component_loss_equals_a_loop(generator: torch.Generator, c: int, k: int, winner: bool) -> None:
    """With 64 x 5 components one has the number of the ignore label; it is learned from as any other."""
    mixture = ClassMixture(c, k, D, winner=winner)
    points = torch.randn(30, D, generator=generator)
    labels = torch.randint(0, c, (30,), generator=generator)
    labels[0], labels[15:20] = c - 1, IGNORE
    each = []
    for point, label in zip(points, labels):
        if label != IGNORE:
            row = mixture.log_density(point[None])[0]
            each.append(row.flatten().logsumexp(0) - row[label].max())
    ours = component_cross_entropy(mixture, points, labels)
    torch.testing.assert_close(ours, torch.stack(each).mean())


def test_likelihood_term_is_the_weighted_mean_over_labelled_points(generator: torch.Generator) -> None:
    logits, evidence = (torch.randn(6, C, generator=generator, requires_grad=True) for _ in range(2))
    labels = torch.tensor([0, 2, IGNORE, 1, 1, IGNORE])
    each = [
        -logits[n].detach().softmax(0)[label] * evidence[n, label] / D
        for n, label in enumerate(labels.tolist())
        if label != IGNORE
    ]
    ours = own_negative_log_likelihood(logits, evidence, labels, channels=D)
    torch.testing.assert_close(ours, torch.stack(each).mean())
    ours.backward()
    assert logits.grad is None, "the posterior is a weight alone"
    assert (evidence.grad != 0).sum() == 4


def test_the_divergence_from_a_teacher_is_that_of_labelled_points_alone(generator: torch.Generator) -> None:
    own, teacher = (torch.randn(4, C, generator=generator, requires_grad=True) for _ in range(2))
    labels = torch.tensor([0, IGNORE, 2, 1])
    each = []
    for n in (0, 2, 3):
        p, q = teacher[n].softmax(0), own[n].softmax(0)
        each.append(sum(p[c] * (p[c] / q[c]).log() for c in range(C)))
    found = divergence_from_teacher(own, teacher.detach(), labels)
    torch.testing.assert_close(found, torch.stack(each).mean())
    found.backward()
    assert own.grad is not None
    assert (own.grad != 0).any(1).tolist() == [True, False, True, True]
    same = divergence_from_teacher(own.detach() + 3, own.detach(), labels)
    assert float(same) == pytest.approx(0, abs=1e-6)


def test_without_labels_every_term_is_zero(generator: torch.Generator) -> None:
    labels, points = torch.full((5,), IGNORE), torch.randn(5, D, generator=generator)
    scores = torch.randn(5, C, generator=generator)
    assert cross_entropy(scores.T[None, :, :, None], labels[None, :, None]) == 0
    assert own_negative_log_likelihood(scores, scores, labels, channels=D) == 0
    assert component_cross_entropy(ClassMixture(C, K, D), points, labels) == 0
    assert divergence_from_teacher(scores, scores + points.mean(), labels) == 0
