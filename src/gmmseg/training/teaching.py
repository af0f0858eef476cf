"""Learning from a trained network: what it says about a batch travels with the output of the one trained."""

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from gmmseg.models import SegmenterOutput


class Taught(nn.Module):
    """``network`` and its ``teacher``, which both see the same batch: SegmenterOutput with teacher_logits.

    The teacher is never trained, nor are the statistics of its batch norms.
    """

    def __init__(self, network: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.network, self.teacher = network, teacher.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Tensor) -> SegmenterOutput:
        with torch.no_grad():
            logits = self.teacher(batch).logits
        return replace(self.network(batch), teacher_logits=logits)
