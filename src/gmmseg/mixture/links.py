"""From evidence to class scores: three small objects, one question, how literally to take the densities.

Each maps evidence (n c) and the mixture's log prior (c) to logits (n c) whose softmax over classes is
the posterior. The anomaly score is taken before the link and never sees it.
"""

import torch
from torch import Tensor, nn


class BayesLink(nn.Module):
    """The paper: Bayes' rule as it stands. Nothing is learned."""

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return evidence + log_prior


class ClassNormLink(nn.Module):
    """The reference code: an affine LayerNorm over the classes' evidences, trained by gradient."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_classes)

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return self.norm(evidence) + log_prior


class AffineLink(nn.Module):
    """Ours: a tempered likelihood and a class prior, both learned by gradient; still a posterior.

    ``softmax_c(temperature * evidence + log_prior + offset)`` with temperature > 0.
    """

    def __init__(self, num_classes: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.offset = nn.Parameter(torch.zeros(num_classes))

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return self.log_temperature.exp() * evidence + (log_prior + self.offset)


def make_link(name: str, num_classes: int, *, temperature: float = 1.0) -> nn.Module:
    """The link called ``name``: bayes, class_norm or affine; ``temperature``: where affine starts."""
    if name == "bayes":
        return BayesLink()
    if name == "class_norm":
        return ClassNormLink(num_classes)
    if name == "affine":
        return AffineLink(num_classes, temperature)
    raise ValueError(f"unknown link {name!r}: choose bayes, class_norm or affine")
