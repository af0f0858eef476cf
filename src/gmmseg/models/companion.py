"""Classifiers beside the head of a segmenter, on one backbone: of the same network, or of one it came from.

Classifiers that were trained apart err in different places. Their posteriors are averaged: labels and
energies then move less with what was drawn at random in training, and where classifiers disagree the model is
less sure. A backbone is nearly all of a network's work: a decoder and a head more cost little beside it.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from gmmseg.json_tree import JSON
from gmmseg.models.features import Features, SplitFeatures
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead
from gmmseg.models.outputs import SegmenterOutput

Kind = Literal["decoder", "head"]
Members = tuple[tuple[int, ...], ...]
"""For each class of a model, the classes of a companion that it is made of: none, one, or several."""


class Companion(nn.Module):
    """A classifier and, unless it sees the features that the model's own head sees, a decoder.

    ``decoder`` makes features of the maps of a backbone that it does not hold. ``settings`` are those of
    ``head``. ``learns``: trained with the model, as `train.decoders` asks; else it stays as it is, the
    statistics of its batch norms included. ``members``: which of its classes those of the model are, where
    the model's classes have changed; None: the same ones.
    """

    def __init__(
        self,
        decoder: SplitFeatures | None,
        head: GMMHead | SoftmaxHead,
        settings: HeadSettings,
        *,
        learns: bool = False,
        members: Members | None = None,
    ) -> None:
        super().__init__()
        self.decoder, self.head, self.settings = decoder, head, settings
        self.learns, self.members = learns, members
        self.requires_grad_(learns)
        self.train(False)

    @property
    def kind(self) -> Kind:
        """What it has of its own: a decoder and a head, or the head alone."""
        return "head" if self.decoder is None else "decoder"

    def train(self, mode: bool = True) -> Self:
        """One that does not learn keeps its statistics, whatever is trained beside it."""
        return super().train(mode and self.learns)

    def forward(
        self, features: Features, maps: tuple[Tensor, ...] | None, image_size: tuple[int, int]
    ) -> SegmenterOutput:
        """What its head says of the features, or of the backbone's maps of images of a size (H, W)."""
        if self.decoder is not None:
            assert maps is not None, "a decoder needs the maps of a network that can be split"
            features = self.decoder.decode(maps, image_size)
        return cast(SegmenterOutput, self.head(features.main))

    def of_classes(self, members: Members) -> "Companion | None":
        """The same companion, its modules shared, of a model whose classes are these of the present ones.

        None where it knows none of them. A class of which it knows but a part is one that it does not know.
        """
        before = self.members or tuple((row,) for row in range(self.head.num_classes))
        changed = copy.copy(self)
        changed.members = tuple(
            tuple(row for each in one for row in before[each]) if all(before[each] for each in one) else ()
            for one in members
        )
        return changed if any(changed.members) else None


def joint_logits(own: Tensor, others: Iterable[tuple[Tensor, Members | None]]) -> Tensor:
    """Logits (b c h w) of a model and its companions together, from its ``own`` and theirs with `Members`.

    Their softmax is the mean of all posteriors, and their logsumexp, the energy, the mean of all of those.
    A class made of several has the sum of their probabilities. One that a companion does not know keeps the
    odds that ``own`` gives it, against all classes which that companion knows.
    """
    every = [own]
    for logits, members in others:
        every.append(logits if members is None else _for_classes(logits, members, own))
    totals = [each.logsumexp(1, keepdim=True) for each in every]
    log_posteriors = torch.stack([each - total for each, total in zip(every, totals)])
    shift = sum(totals[1:], totals[0]) / len(every) - math.log(len(every))
    return torch.logsumexp(log_posteriors, dim=0) + shift


def _for_classes(logits: Tensor, members: Members, own: Tensor) -> Tensor:
    """A companion's logits (b c' h w) as those of the model's classes (b c h w)."""
    # Read one by one: lists of indices would become gathers, which not every runtime has.
    each = {
        place: logits[:, rows[0]]
        if len(rows) == 1
        else torch.logsumexp(torch.stack([logits[:, row] for row in rows], dim=1), dim=1)
        for place, rows in enumerate(members)
        if rows
    }
    known = list(each)
    if len(known) < len(members):
        theirs = torch.logsumexp(torch.stack([*each.values()], dim=1), dim=1)
        ours = torch.logsumexp(torch.stack([own[:, place] for place in known], dim=1), dim=1)
        for place in set(range(len(members))) - set(known):
            each[place] = own[:, place] - ours + theirs
    return torch.stack([each[place] for place in range(len(members))], dim=1)


def companions_in_words(entries: Sequence[JSON]) -> list[str]:
    """What is beside a head, for people, from the entry ``companions`` of config.json."""
    kinds = [str((entry.get("head") or {}).get("kind")) for entry in entries]
    softmax, generative = kinds.count("softmax"), kinds.count("gmm")
    words = []
    for count, kind in ((generative, "generative"), (softmax, "softmax")):
        if count:
            words.append(f"{count} more {kind} classifier{'s' if count > 1 else ''} beside it")
    return words


def say_left_behind(companions: nn.ModuleList) -> None:
    """Warn that a model goes on without its companions, if it had some."""
    if len(companions):
        warnings.warn(
            "the classifiers that were beside the head of this model are left behind",
            stacklevel=3,
        )


def companion_of(
    features: nn.Module,
    head: nn.Module,
    kind: Kind,
    settings: HeadSettings | None = None,
    *,
    learns: bool = False,
) -> Companion:
    """A copy of the head of a model and, for the kind ``decoder``, of its decoder.

    ``features``, ``head`` and its ``settings`` (by default those of a softmax head) are the model's;
    ValueError where these have no such parts.
    """
    settings = HeadSettings(kind="softmax") if settings is None else settings
    if not isinstance(head, GMMHead if settings.kind == "gmm" else SoftmaxHead):
        raise ValueError(f"its head is not of the kind {settings.kind}")
    if kind == "head":
        return Companion(None, copy.deepcopy(head), settings, learns=learns)
    if not isinstance(features, SplitFeatures):
        raise ValueError("this network cannot be split into backbone and decoder")
    # The backbone is left out of the copy: the maps come from that of the model beside it.
    without: dict[int, object] = {id(features.backbone): nn.Identity()}
    return Companion(copy.deepcopy(features, without), copy.deepcopy(head), settings, learns=learns)
