"""Energy, density and both together, by hand; and what a model without them is told."""

from types import SimpleNamespace

import pytest
import torch

from gmmseg.inference.readings import Density, Energy, Fused, fused_of
from gmmseg.models.calibration_file import FUSED, Calibration, ScoreMoments

MOMENTS = {"energy": ScoreMoments(-2.0, 0.5), "density": ScoreMoments(10.0, 4.0)}


@pytest.fixture
def output(generator: torch.Generator) -> SimpleNamespace:
    return SimpleNamespace(
        logits=torch.randn(2, 3, 4, 5, generator=generator),
        density_evidence=torch.randn(2, 3, 4, 5, generator=generator),
    )


def test_each_is_what_its_formula_says(output: SimpleNamespace) -> None:
    energy = -output.logits.exp().sum(1).log()
    density = -output.density_evidence.max(1).values
    torch.testing.assert_close(Energy()(output), energy)
    assert torch.equal(Density()(output), density)
    torch.testing.assert_close(Fused(MOMENTS)(output), (energy + 2) / 0.5 + (density - 10) / 4)


def test_what_is_missing_is_told_with_the_cure(output: SimpleNamespace) -> None:
    output.density_evidence = None
    with pytest.raises(ValueError, match=r"density: this model has no density.*gmmseg fit MODEL"):
        Density()(output)
    with pytest.raises(ValueError, match=r"usual energy and density.*gmmseg calibrate MODEL"):
        Fused()
    with pytest.raises(ValueError, match="usual density of known"):
        Fused({"energy": MOMENTS["energy"]})


def test_the_calibration_says_which_score_is_shown() -> None:
    fused = Calibration("w", {}, 1.0, None, None, None, score=FUSED, moments=MOMENTS)
    assert fused_of(None) is None
    assert fused_of(Calibration("w", {}, 1.0, None, None, None)) is None
    shown = fused_of(fused)
    assert shown is not None
    assert shown.moments == MOMENTS
