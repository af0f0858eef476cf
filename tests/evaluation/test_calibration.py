import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassCalibrationError

from gmmseg.evaluation import CalibrationError, EvaluationError
from gmmseg.labels import IGNORE


def batch(seed: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    posterior = (3 * torch.randn(2, classes, 6, 7, generator=generator)).softmax(1)
    labels = torch.randint(classes, (2, 6, 7), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORE
    return posterior, labels


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 20))
def test_equals_torchmetrics(seed: int, bins: int) -> None:
    ours, theirs = CalibrationError(bins), MulticlassCalibrationError(4, n_bins=bins, norm="l1")
    for offset in range(3):
        posterior, labels = batch(seed + offset)
        valid = labels != IGNORE
        ours.update(posterior, labels)
        theirs.update(posterior.movedim(1, -1)[valid], labels[valid])
    assert float(ours.compute()["ece"]) == pytest.approx(float(theirs.compute()), abs=1e-5)


def test_classwise_equals_a_loop() -> None:
    posterior, labels = batch(1)
    metric = CalibrationError(bins=5, num_classes=4)
    metric.update(posterior, labels)
    valid = labels != IGNORE
    probabilities, true = posterior.movedim(1, -1)[valid].double(), labels[valid]
    errors = []
    for c in range(4):
        error = 0.0
        for b in range(5):
            inside = (probabilities[:, c] > b / 5) & (probabilities[:, c] <= (b + 1) / 5)
            if inside.any():
                gap = (true[inside] == c).double().mean() - probabilities[inside, c].mean()
                error += float(inside.double().mean() * gap.abs())
        errors.append(error)
    assert float(metric.compute()["classwise_ece"]) == pytest.approx(sum(errors) / 4)


def test_a_coin_that_knows_itself_is_calibrated_and_one_that_boasts_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(1, 200, 200, generator=generator) < 0.7).long()
    for sure, expected in ((0.7, 0.0), (0.9, 0.2)):
        metric = CalibrationError()
        metric.update(torch.tensor([1 - sure, sure]).view(1, 2, 1, 1).expand(1, 2, 200, 200), labels)
        assert float(metric.compute()["ece"]) == pytest.approx(expected, abs=0.01)


def test_reliability_table_sums_to_the_error() -> None:
    posterior, labels = batch(2)
    metric = CalibrationError(bins=10)
    metric.update(posterior, labels)
    table = metric.reliability()
    gaps = (table["accuracy"] - table["confidence"]).abs().nan_to_num(0)
    assert table["count"].sum() == (labels != IGNORE).sum()
    assert float((gaps * table["count"]).sum() / table["count"].sum()) == pytest.approx(
        float(metric.compute()["ece"])
    )
    assert table["upper"].tolist() == pytest.approx([(b + 1) / 10 for b in range(10)])


def test_merge_equals_one_pass() -> None:
    whole, left, right = (CalibrationError(num_classes=4) for _ in range(3))
    for seed, part in ((1, left), (2, right)):
        whole.update(*batch(seed))
        part.update(*batch(seed))
    left.merge(right)
    for name, value in whole.compute().items():
        assert float(left.compute()[name]) == pytest.approx(float(value), rel=1e-12)


@pytest.mark.parametrize(
    ("posterior", "labels", "message"),
    [
        (torch.randn(1, 3, 2, 2) * 5, torch.zeros(1, 2, 2).long(), "not a posterior"),
        (torch.full((1, 2, 2, 2), torch.nan), torch.zeros(1, 2, 2).long(), "not a posterior"),
        (torch.full((1, 2, 2, 2), 0.5), torch.zeros(1, 3, 2).long(), "differ in size"),
        (torch.full((1, 2, 2, 2), 0.5), torch.full((1, 2, 2), 2), "labels beyond"),
    ],
)
def test_refusals(posterior: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    metric = CalibrationError()
    with pytest.raises(EvaluationError, match=rf"a\.png: .*{message}"):
        metric.update(posterior, labels, source="a.png")
    metric.update(torch.full((1, 2, 1, 1), 0.5), torch.full((1, 1, 1), IGNORE))
    with pytest.raises(EvaluationError, match="no labelled pixel"):
        metric.compute()
