"""Parameter groups, optimizers and learning-rate schedules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from gmmseg.mixture import OnlineEM
from gmmseg.models import GMMHead, Segmenter
from gmmseg.training.loss import Loss, Prepare, SegmenterLoss, make_loss
from gmmseg.training.train_settings import TrainSettings


class Learner(NamedTuple):
    """What one head learns by: the gradients of ``loss``, and ``em`` for its mixtures.

    ``em`` is None for softmax twins and discriminative mixtures.
    """

    loss: Loss
    em: OnlineEM | None


@dataclass(frozen=True)
class Optimization:
    """What moves a segmenter: gradients its network, EM its mixtures.

    ``network`` is what batches go through: the segmenter itself, unless they hold something else than images.
    ``learners``: of its own head, then of each companion that learns beside it. ``apart``: each of them has
    an equal part of every batch to itself; else all see all of it.
    """

    network: nn.Module
    learners: tuple[Learner, ...]
    optimizer: Optimizer
    schedule: LRScheduler
    apart: bool = False


def make_optimization(
    segmenter: Segmenter,
    settings: TrainSettings,
    em: OnlineEM | None,
    prepare: Prepare,
    network: nn.Module | None = None,
    em_of_companions: Sequence[OnlineEM | None] = (),
    *,
    apart: bool = False,
) -> Optimization:
    """Losses, optimizer and schedule that ``settings`` describe, beside ``em``; see `Optimization`.

    ``em_of_companions``: one for each companion that learns.
    """
    loss = make_loss(segmenter, settings, em, prepare)
    optimizer = make_optimizer(segmenter, settings, loss.parameters())
    others = (
        Learner(SegmenterLoss(segmenter, settings.extra_terms, each), each) for each in em_of_companions
    )
    return Optimization(
        network or segmenter,
        (Learner(loss, em), *others),
        optimizer,
        make_schedule(optimizer, settings),
        apart,
    )


def make_optimizer(
    segmenter: Segmenter, settings: TrainSettings, of_loss: Iterable[nn.Parameter] = ()
) -> Optimizer:
    """AdamW or SGD over `parameter_groups`, and over the parameters of the loss where it has some."""
    groups = parameter_groups(segmenter, settings)
    if more := list(of_loss):
        groups.append({"params": more, "lr": settings.learning_rate})
    if settings.optimizer == "sgd":
        return SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    return AdamW(groups, lr=settings.learning_rate)


def parameter_groups(segmenter: Segmenter, settings: TrainSettings) -> list[dict]:
    """Groups (backbone, rest, link) x (decayed or not), each with its learning rate; empty ones left out.

    AdamW spares vectors and scalars (biases, norms) from weight decay, as transformers' recipes do; SGD
    decays everything but the link, as the paper's convolutional recipes do.
    """
    backbone = {id(parameter) for parameter in segmenter.backbone.parameters()}
    link = {id(parameter) for parameter in _link_parameters(segmenter)}
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for parameter in segmenter.parameters():
        if parameter.requires_grad:
            part = "backbone" if id(parameter) in backbone else "link" if id(parameter) in link else "rest"
            spared = part == "link" or (settings.optimizer == "adamw" and parameter.ndim < 2)
            groups.setdefault((part, not spared), []).append(parameter)
    multiplier = {"backbone": settings.backbone_multiplier, "link": settings.link_multiplier, "rest": 1.0}
    return [
        {
            "params": parameters,
            "lr": settings.learning_rate * multiplier[part],
            "weight_decay": settings.weight_decay if decayed else 0.0,
        }
        for (part, decayed), parameters in groups.items()
    ]


def freeze_backbone(segmenter: Segmenter) -> None:
    """No gradient for the pretrained part."""
    for parameter in segmenter.backbone.parameters():
        parameter.requires_grad_(False)


def make_schedule(optimizer: Optimizer, settings: TrainSettings) -> LambdaLR:
    """The learning rate's factor at each step: linear warm-up, then poly or step."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, settings))


def learning_rate_factor(step: int, settings: TrainSettings) -> float:
    """Factor of the learning rate at step 0, 1 ...: rising to 1, then falling as `decline` says."""
    warm = min(1.0, (step + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    return warm * decline(step, settings)


def decline(step: int, settings: TrainSettings) -> float:
    """The learning rate at a step as a share of the highest, warm-up apart: to 0 (poly) or by tenths."""
    progress = min(step / settings.steps, 1.0)
    if settings.schedule == "poly":
        return (1.0 - progress) ** settings.power
    return 0.1 ** sum(progress >= milestone for milestone in settings.milestones)


def _link_parameters(segmenter: Segmenter) -> list[nn.Parameter]:
    heads = [segmenter.head, *(each.head for each in segmenter.companions)]
    return [parameter for head in heads if isinstance(head, GMMHead) for parameter in head.link.parameters()]
