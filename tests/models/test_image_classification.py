"""The example of the head on image embeddings does what it says."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "image_classification.py"


def test_known_digits_are_told_apart_and_unknown_ones_noticed() -> None:
    accuracy, auroc = runpy.run_path(str(EXAMPLE))["main"]()
    assert accuracy > 0.95
    assert auroc > 0.9
