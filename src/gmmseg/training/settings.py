"""The choices of a training run that concern the loop."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainSettings:
    """Defaults suit a small network fine-tuned on a small data set; shipped configs state what differs."""

    steps: int = 1500
    """Optimizer steps."""
    batch_size: int = 8
    """Images per process and forward pass; batch norm sees those of all processes together."""
    accumulate: int = 1
    """Forward passes per optimizer step: loss and EM are of all of them, batch norm of each by itself."""
    seed: int = 0

    optimizer: str = "adamw"
    """adamw or sgd."""
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    momentum: float = 0.9
    """SGD only."""
    backbone_multiplier: float = 0.1
    """Learning rate of the pretrained part relative to the rest; 0 freezes it, batch norm included."""
    link_multiplier: float = 30.0
    """Learning rate of the link (temperature and class offsets) relative to the rest."""
    schedule: str = "poly"
    """poly, or step: times 0.1 at each milestone."""
    power: float = 0.9
    milestones: tuple[float, ...] = (0.9, 0.95)
    """Shares of the run, for the step schedule."""
    warmup_steps: int = 50
    clip_norm: float | None = None
    precision: str = "no"
    """no, bf16 or fp16."""

    component_weight: float = 0.0
    """Weight of the cross-entropy of each pixel's own component among all c*k."""
    likelihood_weight: float = 0.3
    """Weight of each cell's negative log-likelihood under its own class, per channel of the points: pulls
    known points together, so that unknown ones stand out."""
    auxiliary_weight: float = 0.4
    """Weight of the auxiliary heads."""
    softmax_steps: int = 0
    """Steps of a warm-up: a linear classifier trains the points, EM follows, then the mixtures take over."""
    ema: float | None = None
    """Decay of an average of the weights, which is then what is validated and exported."""

    log_every: int = 10
    validate_every: int = 500
    save_every: int = 500
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "log_every", "validate_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, known in (
            ("optimizer", ("adamw", "sgd")),
            ("schedule", ("poly", "step")),
            ("precision", ("no", "bf16", "fp16")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose {', '.join(known)}")

    def weight(self, term: str) -> float:
        """What a named term of the loss counts for."""
        return getattr(self, f"{term}_weight", 1.0)

    @property
    def extra_terms(self) -> tuple[str, ...]:
        """The optional terms of the loss that count for something."""
        return tuple(name for name in ("component", "likelihood") if self.weight(name) > 0)
