"""Conversion: the name of a softmax network in, folders of weights out."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from gmmseg.models import Segmenter, build
from gmmseg.models.classes import NO_CLASSIFIER
from gmmseg.training.run_folder import refuse_weights

TWIN = "twin"
"""Folder of the softmax twin, in that of the generative model."""


def convert_source(
    source: str,
    out: Path,
    *,
    preset: str = "default",
    twin: bool = False,
    weights: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Segmenter:
    """Write the network called ``source`` with a new head to ``out``, and with ``twin`` its softmax twin.

    The twin is in out/twin and has the very same features. Names, preset, weights and classes as in
    `gmmseg.build`. Returns the segmenter that was written to ``out``.
    """
    for folder in (out, out / TWIN):
        refuse_weights(folder)
    segmenter = build(source, preset=preset, weights=weights, class_names=class_names)
    if twin:
        softmax = _twin(segmenter, source, weights, class_names)
        softmax.save_pretrained(out / TWIN)
    segmenter.save_pretrained(out)
    return segmenter


def _twin(
    segmenter: Segmenter, source: str, weights: str | None, class_names: Sequence[str] | None
) -> Segmenter:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all else was said when the segmenter was built
        warnings.filterwarnings("always", message=f".*{NO_CLASSIFIER}")
        softmax = build(source, preset="softmax", weights=weights, class_names=class_names)
    # What starts from random weights has started from others here.
    softmax.features.load_state_dict(segmenter.features.state_dict())
    return softmax
