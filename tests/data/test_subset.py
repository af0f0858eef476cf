"""Part of a data set: evenly spaced, and itself where it is small."""

import pytest
import torch

from gmmseg.data.samplers import fingerprint
from gmmseg.data.scenes import Scenes
from gmmseg.data.subset import EvenlySpaced

WHOLE = Scenes("val", size=(16, 24), length=7)


def test_samples_are_evenly_spaced_and_come_with_their_labels():
    part = EvenlySpaced(WHOLE, 3)
    assert len(part) == 3
    assert [part[index].name for index in range(3)] == [WHOLE[index].name for index in (0, 2, 4)]
    assert torch.equal(part.labels(1), WHOLE.labels(2))
    with pytest.raises(IndexError):
        part[3]


def test_more_than_there_are_is_all_of_them():
    part = EvenlySpaced(WHOLE, 100)
    assert [part[index].name for index in range(len(part))] == [WHOLE[index].name for index in range(7)]


def test_a_part_is_not_taken_for_the_whole_and_holds_something():
    assert fingerprint(EvenlySpaced(WHOLE, 3)) != fingerprint(EvenlySpaced(WHOLE, 4))
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        EvenlySpaced(WHOLE, 0)
