"""The `reference` preset against the reference code's iteration, step by step, written from its description.

Everything here is loops over classes and components on plain tensors, in double precision, with nothing of
the package but the settings under test.
"""

from collections import deque

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gmmseg.labels import IGNORE
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models.heads import HEAD_PRESETS, make_head
from gmmseg.models.losses import component_cross_entropy
from gmmseg.models.outputs import EMPoints

C, K, D, CHANNELS, CELLS = 4, 5, 8, 12, 240


class Oracle:
    """Means, variances and rings of the reference code, moved one iteration at a time."""

    def __init__(self, head: nn.Module) -> None:
        self.means = head.mixture.means.double().clone()
        self.variances = head.mixture.variances.double().clone()
        self.gain, self.bias = (each.detach().double().clone() for each in head.link.norm.parameters())
        self.rings = {(c, k): deque(maxlen=32_000) for c in range(C) for k in range(K)}
        self.iteration = 0

    def densities(self, points):
        offsets = points[:, None, None] - self.means
        terms = offsets**2 / self.variances + self.variances.log() + torch.log(torch.tensor(2 * torch.pi))
        return -0.5 * terms.sum(-1)

    def scores(self, densities):
        return F.layer_norm(densities.amax(-1), (C,), self.gain, self.bias)

    def assign(self, densities, labels):
        """The component of every labelled pixel, by three rounds of Sinkhorn in its class."""
        component = torch.full_like(labels, -1)
        for c in range(C):
            of_class = (labels == c).nonzero().squeeze(1)
            if len(of_class) == 0:
                continue
            values = densities[of_class, c]
            plan = (values / values.abs().max() / 0.05).exp()
            plan = plan / plan.sum()
            for _ in range(3):
                plan = plan / plan.sum(0, keepdim=True) / K
                plan = plan / plan.sum(1, keepdim=True) / len(of_class)
            component[of_class] = plan.argmax(1)
        return component

    def step(self, points, labels):
        """One iteration on points (n d) of unit length; returns the component term, taken before it."""
        self.means = F.normalize(self.means, dim=-1)
        densities = self.densities(points)
        component = self.assign(densities, labels)
        labelled = labels != IGNORE
        target = (labels * K + component)[labelled]
        term = F.cross_entropy(densities.flatten(1)[labelled], target)
        right = labelled & (self.scores(densities).argmax(-1) == labels)
        for (c, k), ring in self.rings.items():
            found = points[right & (labels == c) & (component == k)]
            n = len(found)
            ring.extend(found if n <= 20 else found[[i * n // 20 for i in range(20)]])
        if self.iteration % 5 == 0:
            self.update(labels[right].unique().tolist())
        self.iteration += 1
        return term

    def update(self, classes):
        for c in classes:
            for k in range(K):
                if self.rings[c, k]:
                    held = torch.stack(list(self.rings[c, k]))
                    direction = F.normalize(held.sum(0), dim=0)
                    self.means[c, k] = 0.999 * self.means[c, k] + 0.001 * direction
                    self.variances[c, k] = ((held - direction) ** 2).mean(0) + 0.01
        self.means = F.normalize(self.means, dim=-1)


def iteration_data(head, step):
    """Features (n f), their points (n d) and labels (n): clusters, some cells ignored, a class at times."""
    generator = torch.Generator().manual_seed(100 + step)
    centres = 2 * torch.randn(C, CHANNELS, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(C, (CELLS,), generator=generator)
    features = centres[labels] + torch.randn(CELLS, CHANNELS, generator=generator)
    labels[torch.rand(CELLS, generator=generator) < 0.1] = IGNORE
    if step % 3 == 1:
        labels[labels == 2] = IGNORE  # absent: must not move, also where the step updates
    return features, labels


@pytest.fixture
def head():
    torch.manual_seed(0)
    settings = HEAD_PRESETS["reference"]
    head = make_head(type(settings)(**{**settings.__dict__, "dim": D}), CHANNELS, C).train()
    with torch.no_grad():  # a gain and bias that change which class is highest
        head.link.norm.weight.copy_(torch.tensor([0.8, 1.3, 1.0, 1.2]))
        head.link.norm.bias.copy_(torch.tensor([0.2, -0.3, 0.1, 0.2]))
        features, labels = iteration_data(head, 0)
        points = head.classify(features).points
        for c in range(C):  # near their class, so that pixels are right and the rings fill
            noise = 0.1 * torch.randn(K, D, generator=torch.Generator().manual_seed(c))
            head.mixture.means[c] = F.normalize(points[labels == c].mean(0) + noise, dim=-1)
    return head


def test_twenty_six_iterations_equal_the_reference(head):
    oracle, em = Oracle(head), OnlineEM(head.mixture, PRESETS["reference"])
    differs = False
    for step in range(26):
        features, labels = iteration_data(head, step)
        output = head.classify(features)
        points = output.points.detach()
        term = component_cross_entropy(head.mixture, points, labels, em)
        correct = output.logits.argmax(-1) == labels
        em.step(*EMPoints(points, labels, torch.zeros_like(labels), correct))
        plain = (output.evidence.argmax(-1) == labels) & (labels != IGNORE)
        differs |= not torch.equal(plain, correct & (labels != IGNORE))
        expected = oracle.step(points.double(), labels)
        torch.testing.assert_close(term.double(), expected, atol=1e-5, rtol=1e-5, msg=f"step {step}")
        torch.testing.assert_close(head.mixture.means.double(), oracle.means, atol=1e-5, rtol=0)
        torch.testing.assert_close(head.mixture.variances.double(), oracle.variances, atol=1e-5, rtol=0)
    held = torch.tensor([[len(oracle.rings[c, k]) for k in range(K)] for c in range(C)])
    assert torch.equal(em.memory.written, held)
    assert differs, "gain and bias decide for some pixels"
    assert held.min() > 0, "every ring is filled, so that all of it was compared"
