import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassJaccardIndex

from gmmseg.evaluation import ConfusionMatrix, EvaluationError
from gmmseg.labels import IGNORE


def maps(seed: int, classes: int, size: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.randint(classes, size, generator=generator)
    labels = torch.randint(classes, size, generator=generator)
    labels[torch.rand(size, generator=generator) < 0.2] = IGNORE
    labels.view(-1)[0] = 0
    return predicted, labels


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7))
def test_counts_and_iou_equal_torchmetrics(seed: int, classes: int) -> None:
    metric = ConfusionMatrix(classes)
    counts = MulticlassConfusionMatrix(classes, ignore_index=IGNORE)
    jaccard = MulticlassJaccardIndex(classes, average="none", ignore_index=IGNORE)
    for batch in range(3):
        predicted, labels = maps(seed + batch, classes, (2, 5, 6))
        for one in (metric, counts, jaccard):
            one.update(predicted, labels)
    assert torch.equal(metric.counts, counts.compute())
    ours = metric.compute()
    assert torch.allclose(ours["iou"].nan_to_num(0).float(), jaccard.compute(), atol=1e-6)
    assert ours["miou"] == pytest.approx(float(ours["iou"].nanmean()))


def test_is_pooled_over_the_set_and_not_averaged_over_images() -> None:
    metric = ConfusionMatrix(2)
    metric.update(torch.tensor([[0, 0, 0, 0]]), torch.tensor([[0, 0, 0, 1]]))
    metric.update(torch.tensor([[1]]), torch.tensor([[1]]))
    assert metric.compute()["iou"].tolist() == [3 / 4, 1 / 2]


def test_a_class_that_never_occurs_does_not_count() -> None:
    metric = ConfusionMatrix(3)
    metric.update(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    assert metric.compute()["miou"] == 1.0
    metric.update(torch.tensor([[2, 2]]), torch.tensor([[0, IGNORE]]))
    result = metric.compute()
    assert result["iou"].tolist() == [0.5, 1.0, 0.0]
    assert result["mean_accuracy"] == pytest.approx(0.75)
    assert result["pixel_accuracy"] == pytest.approx(2 / 3)
    assert int(metric.ignored) == 1


def test_merge_equals_one_pass_and_reset_forgets() -> None:
    whole, left, right = ConfusionMatrix(4), ConfusionMatrix(4), ConfusionMatrix(4)
    for seed, part in ((1, left), (2, right)):
        pair = maps(seed, 4, (3, 8, 8))
        whole.update(*pair)
        part.update(*pair)
    left.merge(right)
    assert torch.equal(left.counts, whole.counts)
    assert int(left.images) == 6
    left.reset()
    assert left.counts.sum() == 0


def test_bad_input_is_named() -> None:
    metric = ConfusionMatrix(3)
    with pytest.raises(EvaluationError, match=r"street\.png: labels hold \[7\]"):
        metric.update(torch.zeros(1, 2).long(), torch.tensor([[0, 7]]), source="street.png")
    with pytest.raises(EvaluationError, match=r"street\.png: predictions hold \[3\]"):
        metric.update(torch.tensor([[0, 3]]), torch.zeros(1, 2).long(), source="street.png")
    with pytest.raises(EvaluationError, match=r"street\.png: .*differ in size"):
        metric.update(torch.zeros(1, 2).long(), torch.zeros(2, 2).long(), source="street.png")
    metric.update(torch.zeros(1, 2).long(), torch.full((1, 2), IGNORE))
    with pytest.raises(EvaluationError, match="no labelled pixel"):
        metric.compute()
