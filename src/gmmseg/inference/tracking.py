"""Which object of a frame is which object of the frames before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gmmseg.inference.pictures import Box


@dataclass(frozen=True)
class _Track:
    """An object that was seen: its id, where it was last, and in how many frames since then it was not."""

    number: int
    box: Box
    missed: int = 0


class ObjectTracker:
    """Gives the objects of one video their ids.

    An object takes the id of the earlier one whose box it overlaps most, with an intersection over union of
    at least ``min_overlap``; an id is given up after more than ``max_missed`` frames in a row without it.
    Boxes are compared alone, so the state is a few numbers per object in sight.
    """

    def __init__(self, *, min_overlap: float = 0.3, max_missed: int = 5) -> None:
        self.min_overlap, self.max_missed = min_overlap, max_missed
        self.given = 0
        self._tracks: list[_Track] = []

    def step(self, boxes: Sequence[Box]) -> list[int]:
        """The ids of the objects in ``boxes`` of the next frame, in their order; new ones count from 1."""
        matched = self._matched(boxes)
        ids = []
        for index, _ in enumerate(boxes):
            if index not in matched:
                self.given += 1
            ids.append(matched.get(index, self.given))
        seen = [_Track(number, box) for number, box in zip(ids, boxes)]
        unseen = [replace(each, missed=each.missed + 1) for each in self._tracks if each.number not in ids]
        self._tracks = [*seen, *(each for each in unseen if each.missed <= self.max_missed)]
        return ids

    def _matched(self, boxes: Sequence[Box]) -> dict[int, int]:
        """Index of a box -> id of its track: pairs in the order of their overlap, each used once."""
        pairs = [
            (overlap(track.box, box), track.number, index)
            for track in self._tracks
            for index, box in enumerate(boxes)
        ]
        found: dict[int, int] = {}
        for share, number, index in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
            if share >= self.min_overlap and index not in found and number not in found.values():
                found[index] = number
        return found


def overlap(one: Box, other: Box) -> float:
    """Intersection over union of two boxes."""
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    shared = max(width, 0) * max(height, 0)
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)
