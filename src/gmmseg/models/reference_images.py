"""What calibration images looked like as a whole: a few numbers per image, counted."""

from dataclasses import dataclass

from gmmseg.bounds import Count, check_bounds

OBJECTS, CONDITIONS = "objects", "conditions"
STORED_AS = {OBJECTS: "objects_by_window", CONDITIONS: "conditions_by_window"}
"""Statistic -> its name in calibration.json. An earlier version counted other values as ``objects`` and
``conditions``; a monitor asks for a new calibration rather than compare an image with those."""


@dataclass(frozen=True)
class ReferenceCounts:
    """How many calibration images have which value of one statistic: ``counts[k]`` have ``levels[k]``.

    Values are rounded to fixed bins, so the number of levels is bounded whatever the number of images.
    """

    levels: tuple[float, ...]
    counts: tuple[Count, ...]

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.levels) != len(self.counts) or not self.levels:
            raise ValueError(
                f"{len(self.levels)} levels and {len(self.counts)} counts do not belong together"
            )
        if any(low >= high for low, high in zip(self.levels, self.levels[1:])):
            raise ValueError("levels must rise")

    @property
    def images(self) -> int:
        """How many images were counted."""
        return sum(self.counts)
