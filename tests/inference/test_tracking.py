import itertools

import numpy as np
import pytest

from gmmseg.inference import ObjectTracker
from gmmseg.inference.tracking import overlap


def test_overlap_is_that_of_masks():
    rng = np.random.default_rng(0)
    boxes = [tuple(int(n) for n in (*rng.integers(0, 12, 2), *rng.integers(1, 9, 2))) for _ in range(30)]
    for one, other in itertools.product(boxes, boxes):
        masks = np.zeros((2, 24, 24), bool)
        for mask, (left, top, width, height) in zip(masks, (one, other)):
            mask[top : top + height, left : left + width] = True
        assert overlap(one, other) == pytest.approx((masks[0] & masks[1]).sum() / masks.any(0).sum())


def test_moving_objects_keep_their_ids_and_new_ones_get_new_ones():
    tracker = ObjectTracker()
    assert tracker.step([(0, 0, 10, 10), (50, 50, 8, 8)]) == [1, 2]
    # In another order, both moved; the one between is new.
    assert tracker.step([(52, 51, 8, 8), (25, 25, 5, 5), (3, 0, 10, 10)]) == [2, 3, 1]
    assert tracker.step([]) == []
    assert tracker.step([(4, 1, 10, 10)]) == [1]


def test_an_id_survives_a_few_missed_frames_and_no_more():
    for missed, expected in ((2, [1]), (3, [2])):
        tracker = ObjectTracker(max_missed=2)
        tracker.step([(0, 0, 10, 10)])
        for _ in range(missed):
            tracker.step([])
        assert tracker.step([(1, 0, 10, 10)]) == expected


def test_the_larger_overlap_wins_and_an_id_is_given_once():
    tracker = ObjectTracker()
    tracker.step([(0, 0, 10, 10)])
    assert tracker.step([(4, 0, 10, 10), (1, 0, 10, 10)]) == [2, 1]
    assert tracker.step([(1, 0, 10, 10), (40, 0, 10, 10)]) == [1, 3]
