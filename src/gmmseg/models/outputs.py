"""What a segmenter returns: the currency between networks, losses, EM and scores."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SegmenterOutput:
    """One forward pass at feature resolution (stride of the extractor).

    ``logits`` (b c h w): their log-softmax over ``c`` is the log posterior, for either head.
    ``points`` (b d h w): what the classifier sees (for a softmax head: the features themselves).
    ``evidence`` (b c h w) and ``log_densities`` (b c k h w): generative heads only, else None.
    ``auxiliary``: logits (b c h' w') of auxiliary heads, in training only.
    """

    logits: Tensor
    points: Tensor
    evidence: Tensor | None = None
    log_densities: Tensor | None = None
    auxiliary: tuple[Tensor, ...] = ()
