"""Figures of single images against loops written from their definitions."""

import numpy as np
import pytest
import torch

from gmmseg.evaluation.per_image import LISTED, KnownImages, StrangeImages
from gmmseg.labels import IGNORE


def drawn_images(count: int, classes: int = 3) -> list[tuple[torch.Tensor, ...]]:
    """(predicted, labels, scores) of ``count`` images; the last class is never labelled nor predicted."""
    generator = torch.Generator().manual_seed(3)
    images = []
    for _ in range(count):
        labels = torch.randint(classes - 1, (6, 7), generator=generator)
        wrong = torch.rand(6, 7, generator=generator) < torch.rand(1, generator=generator)
        predicted = torch.where(wrong, (labels + 1) % (classes - 1), labels)
        labels[0, 0] = IGNORE
        images.append((predicted, labels, torch.rand(6, 7, generator=generator)))
    return images


def known(images) -> KnownImages:
    seen = KnownImages(3)
    for index, (predicted, labels, scores) in enumerate(images):
        seen.update(index, f"image {index}", predicted, labels, scores)
    return seen


def ious(predicted: np.ndarray, labels: np.ndarray) -> list[float]:
    keep = labels != IGNORE
    pairs = [((predicted == c) & keep, (labels == c) & keep) for c in range(3)]
    return [(a & b).sum() / (a | b).sum() if (a | b).any() else np.nan for a, b in pairs]


def test_intervals_equal_a_loop_over_drawn_images():
    images = drawn_images(5)
    found = known(images).intervals()
    generator, figures = np.random.default_rng(0), []
    for _ in range(10):
        for times in generator.multinomial(5, [0.2] * 5, size=100):
            chosen = [index for index in range(5) for _ in range(times[index])]
            predicted, labels = (np.stack([images[i][part].numpy() for i in chosen]) for part in (0, 1))
            each = ious(predicted, labels)
            right = (predicted == labels)[labels != IGNORE].mean()
            figures.append([np.nanmean(each), right, *each[:2]])
    low, high = np.quantile(figures, [0.025, 0.975], axis=0)
    assert found.figures["miou"] == pytest.approx((low[0], high[0]))
    assert found.figures["pixel_accuracy"] == pytest.approx((low[1], high[1]))
    np.testing.assert_allclose(found.iou[:2], np.stack([low, high], 1)[2:])
    assert np.isnan(found.iou[2]).all(), "a class that never occurs has no interval"


def test_images_that_are_all_alike_leave_no_doubt_and_one_image_says_nothing():
    image = drawn_images(1)[0]
    found = known([image] * 4).intervals()
    assert found.figures["miou"][0] == pytest.approx(found.figures["miou"][1])
    assert known([image]).intervals() is None
    assert known([]).intervals() is None


def test_the_worst_have_most_wrong_pixels_and_the_strangest_the_highest_scores():
    images = drawn_images(LISTED + 4)
    unlabelled = (images[0][0], torch.full((6, 7), IGNORE), torch.full((6, 7), float("inf")))
    ranked = known([*images, unlabelled]).ranked()
    wrong = {i: (p != y)[y != IGNORE].double().mean().item() for i, (p, y, _) in enumerate(images)}
    expected = sorted(wrong, key=lambda index: -wrong[index])[:LISTED]
    assert [each["index"] for each in ranked["worst"]] == expected
    first = ranked["worst"][0]
    assert first["wrong"] == pytest.approx(wrong[expected[0]])
    assert first["miou"] == pytest.approx(
        np.nanmean(ious(*(part.numpy() for part in images[expected[0]][:2])))
    )
    assert first["image"] == f"image {expected[0]}"
    tops = [np.quantile(scores.numpy(), 0.99) for *_, scores in images]
    assert [each["index"] for each in ranked["strangest"]] == [
        len(images),
        *np.argsort(tops)[::-1][: LISTED - 1],
    ]


def test_of_an_anomaly_set_misses_and_false_alarms_are_counted_by_hand():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, IGNORE]], dtype=torch.uint8)
    scores = torch.tensor([[9.0, 1.0, 9.0, 9.0], [0.0, 0.0, 0.0, 9.0]])
    flagged = np.array([[1, 0, 1, 1], [0, 0, 0, 0]], dtype=bool)
    seen = StrangeImages()
    seen.update(0, "mixed", scores, mask, flagged)
    seen.update(1, "calm", torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.uint8), np.zeros((2, 4), bool))
    ranked = seen.ranked()
    assert ranked["worst"][0] == {
        "image": "mixed",
        "index": 0,
        "wrong": pytest.approx(3 / 7),
        "missed": 0.5,
        "flagged_known": pytest.approx(2 / 5),
        "strangeness": 9.0,
    }
    assert np.isnan(ranked["worst"][1]["missed"]), "nothing is unknown there"
