"""What a threshold flags, counted by hand."""

import numpy as np
import pytest
import torch

from gmmseg.evaluation.alarms import AlarmRates
from gmmseg.labels import IGNORE

HIGH = torch.tensor([[9.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
MASK = torch.tensor([[1, IGNORE, 0], [0, 1, 0]], dtype=torch.uint8)


def see(rates, scores, labels, *, anomaly_set):
    rates.update(rates.flagged(scores, labels), labels, anomaly_set=anomaly_set)


def test_shares_of_images_alarms_and_recall_are_those_counted_by_hand():
    rates = AlarmRates(5.0)
    see(rates, HIGH, MASK, anomaly_set=True)  # one of three known pixels, one of two unknown ones
    see(rates, HIGH, torch.zeros(2, 3, dtype=torch.uint8), anomaly_set=True)  # a normal image with an alarm
    see(rates, torch.zeros(2, 3), np.zeros((2, 3), np.uint8), anomaly_set=True)  # one without
    see(rates, HIGH, torch.full((2, 3), IGNORE), anomaly_set=True)  # nothing to judge
    see(rates, HIGH, torch.full((2, 3), 1), anomaly_set=True)  # all unknown, half of it found
    assert rates.compute() == {
        "threshold": 5.0,
        "normal_images": 2,
        "flagged_known": pytest.approx((1 / 3 + 1 / 2 + 0) / 3),
        "images_with_alarm": 0.5,
        "recall": 4 / 8,
    }


def test_in_a_labelled_set_class_one_is_known_and_nothing_is_said_of_recall():
    rates = AlarmRates(5.0)
    see(rates, HIGH, MASK, anomaly_set=False)
    assert rates.compute() == {
        "threshold": 5.0,
        "normal_images": 1,
        "flagged_known": 2 / 5,
        "images_with_alarm": 1.0,
    }


def test_small_regions_and_ignored_pixels_raise_no_alarm():
    rates = AlarmRates(5.0, min_area=2)
    see(rates, HIGH, torch.tensor([[0, IGNORE, 0], [0, 0, 0]]), anomaly_set=False)
    assert rates.compute()["images_with_alarm"] == 0
    see(rates, HIGH, torch.zeros(2, 3), anomaly_set=False)  # the same with the pixel between them
    assert rates.compute()["images_with_alarm"] == 0.5
    assert rates.compute()["flagged_known"] == 0.25


def test_two_parts_are_the_whole_and_nothing_is_said_of_nothing():
    assert AlarmRates(1.0).compute() == {"threshold": 1.0, "normal_images": 0}
    whole, first, second = AlarmRates(5.0), AlarmRates(5.0), AlarmRates(5.0)
    for part, labels in ((first, MASK), (second, torch.zeros(2, 3))):
        see(whole, HIGH, labels, anomaly_set=True)
        see(part, HIGH, labels, anomaly_set=True)
    first.merge(second)
    assert first.compute() == whole.compute()
