"""The terms of the loss: functions of logits, points and labels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gmmseg.labels import IGNORE
from gmmseg.mixture import ClassMixture, OnlineEM
from gmmseg.mixture.gaussian import own_log_density

_FEW_CLASSES = 16


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labelled pixels, logits (b c h w) and labels (b h w); 0 when there are none."""
    # On a CPU, one row of classes per pixel takes half the time with many classes, and twice with fewer than
    # a vector of the processor holds; the numbers are the same.
    if logits.shape[1] < _FEW_CLASSES:
        rows, labels_of_rows = logits.float().contiguous(), labels
    else:
        rows, labels_of_rows = logits.float().movedim(1, -1).flatten(0, -2), labels.flatten()
    total = F.cross_entropy(rows, labels_of_rows, ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp_min(1)


def own_negative_log_likelihood(logits: Tensor, evidence: Tensor, labels: Tensor, *, channels: int) -> Tensor:
    """Mean over labelled points of -p(class | point) log p(point | class), their own class; 0 without any.

    Logits and evidence (n c), labels (n); per channel of the points. The posterior is a weight alone, without
    a gradient: a point that is not known for what it is yet is the cross-entropy's business.
    """
    labelled = labels != IGNORE
    classes = torch.where(labelled, labels, 0)[:, None]
    weight = logits.detach().softmax(-1).gather(-1, classes)[:, 0] * labelled
    own = evidence.gather(-1, classes)[:, 0]
    return -(weight * own).sum() / (channels * labelled.sum().clamp_min(1))


def divergence_from_teacher(logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over labelled points of KL(teacher's posterior, own posterior); 0 without any.

    Both logits (n c), labels (n). What nobody has labelled stays out, as in all other terms: it may show
    classes that training is not meant to see.
    """
    labelled = labels != IGNORE
    own, teacher = (each[labelled].float().log_softmax(-1) for each in (logits, teacher_logits))
    return F.kl_div(own, teacher, reduction="sum", log_target=True) / labelled.sum().clamp_min(1)


def component_cross_entropy(
    mixture: ClassMixture, points: Tensor, labels: Tensor, em: OnlineEM | None = None
) -> Tensor:
    """Cross-entropy of each point's own component among all c*k; 0 without labelled points.

    Points (n d) and labels (n). The own component is the one that the E-step of ``em`` gives the point to;
    without ``em``, the likeliest one of the labelled class.
    """
    labelled = labels != IGNORE
    rows, classes = points[labelled], labels[labelled]
    with torch.no_grad():
        if em is None:
            own = own_log_density(rows, classes, mixture.means, mixture.variances)
            shares = own + mixture.log_weights[classes]
        else:
            shares = em.responsibilities(rows, classes)
        components = shares.argmax(-1)
    surprise = mixture.total(rows) - mixture.component_log_density(rows, classes, components)
    return surprise.sum() / labelled.sum().clamp_min(1)
