"""Every choice of the generative step as data, and the three named sets of choices."""

from dataclasses import dataclass, replace
from typing import Literal

from gmmseg.bounds import Count, CountOrNone, Decay, NotNegative, Positive, Share, check_bounds


@dataclass(frozen=True)
class EMSettings:
    """The bare defaults are the paper's choices; `PRESETS` names them, the reference code's and ours."""

    samples_per_class: Count = 100
    """Which points: at most this many labelled ones of a class from each image are assigned and used."""
    samples_per_component: Count | None = None
    """Instead: all labelled points are assigned, and at most this many of each component, evenly spaced in
    the order of the global batch, are used."""
    correct_only: bool = False
    """Use only points that are classified correctly."""

    balanced: bool = True
    """E-step: equipartition by Sinkhorn; otherwise the independent responsibilities of plain EM."""
    hard: bool = False
    """Give all of a point to one component."""
    epsilon: Positive = 0.05
    """Entropy of the balanced assignment, in nats of log density (or, with scale_cost, relative)."""
    tolerance: Positive | None = 0.01
    """Balance until every component's share is even to this part; None: a fixed number of iterations."""
    iterations: Count = 50
    """Iterations of the balanced assignment, at most."""
    scale_cost: bool = False
    """Divide the cost by its largest magnitude in the class before the balanced assignment."""
    centre_cost: bool = True
    """Subtract each point's largest log density first; matters to a fixed number of iterations alone."""
    loops: Count = 1
    """E and M steps per iteration on the same points, each with the momentum."""

    memory: Literal["queue", "statistics"] = "queue"
    """``queue``: the last memory_size points per component; ``statistics``: moments, forgotten by decay."""
    memory_size: CountOrNone = 32_000
    """Points per (class, component) in the queue; 0 means no memory."""
    memory_float16: bool = False
    """Store the queue in half precision."""
    decay: Decay = 0.99
    """Statistics: what is kept of a class's moments each time a batch holds that class, at a
    ``forgetting_scale`` of 1."""
    decay_points: Count | None = None
    """Statistics: a batch with fewer points of a class than this makes it forget in proportion less, so that
    rare classes remember as many points as frequent ones. None: every batch at the full rate."""
    anneal: bool = False
    """Scale the forgetting of statistics and covariance by the ``forgetting_scale`` given to `OnlineEM.step`;
    the trainer gives the share of its learning rate that is left."""

    update_every: Count = 1
    """M-step: steps from one update to the next, the first step being one; points are remembered in every
    step."""
    batch_in_update: bool = True
    """Update from memory and batch; otherwise from the memory alone, the batch already in it."""
    mean_momentum: Decay = 0.999
    """What is kept of the old mean (and, in plain EM, of the old component weight) in an update."""
    variance_momentum: Decay = 0.999
    """What is kept of the old variance in an update."""
    warm_momentum: bool = True
    """Let a component's momentum grow from zero, as 1 - 1/updates, so that its random start is not
    remembered; 0.999 is reached, and stays, after 1,000 updates."""
    variance_offset: NotNegative = 0.0
    """Added to each variance, in the units of the points squared: lower it for points much smaller than 1."""
    variance_floor: NotNegative = 1e-4
    """Least variance, in the units of the points squared."""
    relative_floor: Share = 0.0
    """Least variance as a share of the mean variance of all components."""

    covariance_decay: Decay = 0.95
    """Whitened coordinates: what each batch leaves of the earlier covariance within classes, at a
    ``forgetting_scale`` of 1."""
    covariance_shrinkage: Positive = 0.1
    """Whitened coordinates: share of the mean variance added in all directions before whitening."""

    estimate_prior: bool = False
    """Class prior from the shares of labels seen so far; otherwise uniform."""
    reseed: bool = False
    """Move collapsed or starved components to a fresh point of their class."""

    def __post_init__(self) -> None:
        check_bounds(self)


PAPER = EMSettings()
REFERENCE = replace(
    PAPER,
    samples_per_component=20,
    correct_only=True,
    hard=True,
    scale_cost=True,
    centre_cost=False,
    tolerance=None,
    iterations=3,
    update_every=5,
    batch_in_update=False,
    variance_momentum=0.0,
    warm_momentum=False,
    variance_offset=0.01,
    variance_floor=0.0,
)
DEFAULT = replace(
    PAPER,
    scale_cost=True,
    hard=True,
    tolerance=None,
    iterations=10,
    memory="statistics",
    decay=0.9,
    decay_points=400,
    anneal=True,
    mean_momentum=0.0,
    variance_momentum=0.0,
    warm_momentum=False,
    variance_offset=0.01,
    variance_floor=0.0,
)
PRESETS = {"paper": PAPER, "reference": REFERENCE, "default": DEFAULT}
