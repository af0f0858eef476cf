"""The choices of a training run that concern the loop."""

from dataclasses import dataclass
from typing import Literal

from gmmseg.bounds import Count, CountOrNone, Decay, NotNegative, Positive, Seed, Share, check_bounds


@dataclass(frozen=True)
class TrainSettings:
    """Defaults suit a small network fine-tuned on a small data set; shipped configs state what differs."""

    steps: Count = 1500
    """Optimizer steps."""
    batch_size: Count = 8
    """Images per process and forward pass; batch norm sees those of all processes together."""
    accumulate: Count = 1
    """Forward passes per optimizer step: loss and EM are of all of them, batch norm of each by itself."""
    seed: Seed = 0

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw or sgd."""
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-2
    momentum: Decay = 0.9
    """SGD only."""
    backbone_multiplier: NotNegative = 0.1
    """Learning rate of the pretrained part relative to the rest; 0 freezes it, batch norm included."""
    cached_crops: CountOrNone = 0
    """With a frozen backbone: crops of each image whose backbone maps are computed once, kept on disk in half
    precision and trained on in turn. 0: a new crop in every epoch, through the backbone."""
    decoders: Count = 1
    """With a frozen backbone: decoders and heads that are trained on it side by side, each from random
    weights of its own. Their posteriors are averaged. A network whose backbone is trained, or cannot be told
    from its decoder, has one."""
    link_multiplier: NotNegative = 30.0
    """Learning rate of the link (temperature and class offsets) relative to the rest."""
    schedule: Literal["poly", "step"] = "poly"
    """poly, or step: times 0.1 at each milestone."""
    power: NotNegative = 0.9
    milestones: tuple[Share, ...] = (0.9, 0.95)
    """Shares of the run, for the step schedule."""
    warmup_steps: CountOrNone = 50
    clip_norm: Positive | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    """no, bf16 or fp16."""

    component_weight: NotNegative = 0.0
    """Weight of the cross-entropy of each pixel's own component among all c*k."""
    likelihood_weight: NotNegative = 0.3
    """Weight of each cell's negative log-likelihood under its own class, per channel of the points: pulls
    known points together, so that unknown ones stand out."""
    auxiliary_weight: NotNegative = 0.4
    """Weight of the auxiliary heads."""
    softmax_steps: CountOrNone = 0
    """Steps of a warm-up: a linear classifier trains the points, EM follows, then the mixtures take over."""
    density: bool = True
    """When training ends, fit a density of the backbone's maps on the training images, in one pass, and put
    it beside the head: the anomaly score is then ``fused``. For networks that can be split into backbone and
    decoder and whose maps are not too wide (`gmmseg.run.fit.MOST_CHANNELS`)."""
    exemplars: bool = False
    """When training ends, write the index of training pixels that `gmmseg explain` shows beside the weights,
    in one more pass over the training images."""
    ema: Decay | None = None
    """Decay of an average of the weights, which is then what is validated and exported."""

    log_every: Count = 10
    validate_every: Count = 500
    save_every: Count = 500
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)

    def weight(self, term: str) -> float:
        """What a named term of the loss counts for."""
        return getattr(self, f"{term}_weight", 1.0)

    @property
    def extra_terms(self) -> tuple[str, ...]:
        """The optional terms of the loss that count for something."""
        return tuple(name for name in ("component", "likelihood") if self.weight(name) > 0)


_DEFAULT = {
    name: getattr(TrainSettings, name)
    for name in ("likelihood_weight", "component_weight", "link_multiplier", "density", "decoders")
}
TRAIN_PRESETS: dict[str, dict[str, float]] = {
    "default": {**_DEFAULT, "decoders": 3},
    "paper": {**_DEFAULT, "likelihood_weight": 0.0, "density": False},
    "reference": {
        "likelihood_weight": 0.0,
        "component_weight": 0.01,
        "link_multiplier": 1.0,
        "density": False,
        "decoders": 1,
    },
    "softmax": {**_DEFAULT, "density": False},  # a softmax head has neither likelihood nor link
}
"""What a preset says about the loss, the link's learning rate, and what there is beside the head."""
