"""What is minimised: a segmenter's own terms, or those of a linear classifier during a warm-up."""

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor, nn

from gmmseg.mixture import OnlineEM
from gmmseg.models import Segmenter
from gmmseg.models.pairing import PairedMaps, PairedOutput
from gmmseg.training.train_settings import TrainSettings

Prepare = Callable[[nn.Module], nn.Module]
"""Makes a module ready for several processes, as `Accelerator.prepare` does."""


class Loss(Protocol):
    """What the loop asks of a loss; it may have parameters and a state of its own."""

    def __call__(self, paired: PairedOutput, step: int) -> dict[str, Tensor]:
        """Named, unweighted terms, each a mean over what is labelled."""

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        """Over how many each term is the mean, for labels (b H W); for every term there can be."""

    def parameters(self) -> Iterable[nn.Parameter]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> object: ...


class SegmenterLoss:
    """The segmenter's own terms and those in ``extra``; ``em`` says which component is a point's own."""

    def __init__(self, segmenter: Segmenter, extra: tuple[str, ...], em: OnlineEM | None) -> None:
        self.segmenter, self.extra, self.em = segmenter, extra, em

    def __call__(self, paired: PairedOutput, step: int) -> dict[str, Tensor]:
        return paired.losses(self.extra, self.em)

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        return self.segmenter.label_counts(labels)

    def parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """There is nothing to load: its terms have no state."""


class SoftmaxWarmUp:
    """In the first ``steps`` a linear classifier of the points trains them; then the loss ``then`` does.

    EM follows the points meanwhile, so that the mixtures are ready when they take over. The state is that of
    ``classifier``, a 1x1 convolution from points to logits.
    """

    def __init__(self, classifier: nn.Module, then: Loss, steps: int, prepare: Prepare) -> None:
        self.classifier, self.then, self.steps = classifier, then, steps
        self.network = prepare(classifier)

    def __call__(self, paired: PairedOutput, step: int) -> dict[str, Tensor]:
        if step >= self.steps:
            return self.then(paired, step)
        assert isinstance(paired, PairedMaps)  # others are refused by `make_loss`
        terms, logits = paired.losses(), self.network(paired.output.points)
        # Of weight zero, yet a term: with several processes every parameter needs a gradient.
        return {**terms, "posterior": 0.0 * terms["posterior"], "warmup": paired.cross_entropy(logits)}

    def label_counts(self, labels: Tensor) -> dict[str, Tensor]:
        counts = self.then.label_counts(labels)
        return {**counts, "warmup": counts["posterior"]}

    def parameters(self) -> Iterable[nn.Parameter]:
        return self.classifier.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        return self.classifier.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.classifier.load_state_dict(state)


def make_loss(
    segmenter: Segmenter,
    settings: TrainSettings,
    em: OnlineEM | None,
    prepare: Prepare,
) -> Loss:
    """The loss that ``settings`` describe; a warm-up concerns generative heads alone."""
    loss = SegmenterLoss(segmenter, settings.extra_terms, em)
    mixture = segmenter.mixture
    if mixture is None or not settings.softmax_steps:
        return loss
    if not segmenter.points_are_cells:
        raise ValueError(
            f"train.softmax_steps={settings.softmax_steps}: a warm-up classifies the point of each cell, and "
            "this network's points are not its cells (Mask2Former's are queries); set it to 0"
        )
    classifier = nn.Conv2d(mixture.dim, mixture.num_classes, 1).to(mixture.means.device)
    return SoftmaxWarmUp(classifier, loss, settings.softmax_steps, prepare)
