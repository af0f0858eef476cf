"""Class names and colours of the known data sets."""

import pytest

from gmmseg.data import load_label_space
from gmmseg.labels import IGNORE


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [
        ("cityscapes", 19, {0: "road", 5: "pole", 10: "sky", 13: "car", 18: "bicycle"}),
        ("ade20k", 150, {0: "wall", 2: "sky", 12: "person", 20: "car", 127: "bicycle", 149: "flag"}),
        ("coco_stuff_10k", 171, {0: "person", 79: "toothbrush", 80: "banner", 170: "wood"}),
        ("camvid", 11, {0: "sky", 3: "road", 8: "car", 10: "bicyclist"}),
        ("scenes", 10, {0: "road", 7: "sky"}),
    ],
)
def test_names_and_colours(name: str, count: int, known: dict[int, str]) -> None:
    space = load_label_space(name)
    assert len(space) == len(set(space.names)) == count
    assert {index: space.names[index] for index in known} == known
    assert all(0 <= channel <= 255 for colour in space.colours for channel in colour)


def test_cityscapes_maps_its_34_ids() -> None:
    space = load_label_space("cityscapes")
    evaluated = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    assert [space.defined[raw] for raw in evaluated] == list(range(19))
    others = set(range(-1, 34)) - set(evaluated)
    assert {space.defined[raw] for raw in others} == {IGNORE}
    assert space.colours[0] == (128, 64, 128)


@pytest.mark.parametrize(("name", "count"), [("ade20k", 150), ("coco_stuff_10k", 171)])
def test_zero_is_unlabelled_and_classes_start_at_one(name: str, count: int) -> None:
    assert load_label_space(name).defined == {0: IGNORE, **{k: k - 1 for k in range(1, count + 1)}}


def test_an_unknown_space_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no label space called 'moon'; there are: ade20k, camvid"):
        load_label_space("moon")
