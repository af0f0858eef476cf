"""From evidence to class scores: three small objects, one question, how literally to take the densities.

Each maps evidence (n c) and the mixture's log prior (c) to logits (n c) whose softmax over classes is
the posterior. The anomaly score is taken before the link and never sees it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Link(nn.Module, ABC):
    """Evidence (n c) and log prior (c) -> logits (n c)."""

    @abstractmethod
    def on_maps(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        """The same for maps of evidence (b c h w): logits (b c h w)."""


class BayesLink(Link):
    """The paper: Bayes' rule as it stands. Nothing is learned."""

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return evidence + log_prior

    def on_maps(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return evidence + log_prior[:, None, None]


class ClassNormLink(Link):
    """The reference code: an affine LayerNorm over the classes' evidences, trained by gradient."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_classes)

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return self.norm(evidence) + log_prior

    def on_maps(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return self(evidence.permute(0, 2, 3, 1), log_prior).permute(0, 3, 1, 2)


class AffineLink(Link):
    """Ours: a tempered likelihood and a class prior, both learned by gradient; still a posterior.

    ``softmax_c(temperature * evidence + log_prior + offset)`` with temperature > 0.
    """

    def __init__(self, num_classes: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.offset = nn.Parameter(torch.zeros(num_classes))

    def forward(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return torch.addcmul(log_prior + self.offset, evidence, self.log_temperature.exp())

    def on_maps(self, evidence: Tensor, log_prior: Tensor) -> Tensor:
        return self.log_temperature.exp() * evidence + (log_prior + self.offset)[:, None, None]


def make_link(name: str, num_classes: int, *, temperature: float = 1.0) -> Link:
    """The link called ``name``: bayes, class_norm or affine; ``temperature``: where affine starts."""
    if name == "bayes":
        return BayesLink()
    if name == "class_norm":
        return ClassNormLink(num_classes)
    if name == "affine":
        return AffineLink(num_classes, temperature)
    raise ValueError(f"unknown link {name!r}: choose bayes, class_norm or affine")


class LinearTerms(NamedTuple):
    """A link as ``logits = temperature * evidence + offsets``, offsets (c) being the whole log prior."""

    temperature: float
    offsets: Tensor


def linear_terms(link: nn.Module, log_prior: Tensor) -> LinearTerms:
    """What a link does to the evidence of each class; ValueError if classes depend on each other."""
    if isinstance(link, BayesLink):
        return LinearTerms(1.0, log_prior)
    if isinstance(link, AffineLink):
        return LinearTerms(float(link.log_temperature.detach().exp()), log_prior + link.offset.detach())
    raise ValueError(
        "the class_norm link normalises each cell over all classes, with weights that were trained for "
        "exactly these: one class more or less would change the scores of all others. Use a model with the "
        "link affine (preset default) or bayes (preset paper)"
    )


@torch.no_grad()
def link_of_rows(link: Link, rows: Sequence[int | None]) -> Link:
    """The link for other classes: each takes what the link has learned of class ``row``; None: nothing yet.

    A class without a row has its whole prior in the mixture's log prior.
    """
    linear_terms(link, torch.zeros(()))
    if not isinstance(link, AffineLink):
        return BayesLink()
    changed = AffineLink(len(rows)).to(link.offset.device)
    changed.log_temperature.copy_(link.log_temperature)
    for place, row in enumerate(rows):
        if row is not None:
            changed.offset[place] = link.offset[row]
    return changed.train(link.training)
