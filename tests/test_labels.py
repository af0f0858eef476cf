"""Label spaces: encoding, its refusals."""

import numpy as np
import pytest

from gmmseg.labels import IGNORE, LabelError, LabelSpace

COLOURS = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
SPACE = LabelSpace(("a", "b", "c"), COLOURS)
GAPPED = LabelSpace(("a", "b", "c"), COLOURS, {-1: IGNORE, 4: 2, 7: 0, 300: 1})


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.int64])
def test_encode_equals_a_loop_over_pixels(dtype: type) -> None:
    raw = np.random.default_rng(0).choice([0, 1, 2, IGNORE], (17, 23)).astype(dtype)
    encoded = SPACE.encode(raw, "here")
    assert encoded.dtype == np.uint8
    assert encoded.tolist() == [[SPACE.defined[int(value)] for value in row] for row in raw]


def test_raw_ids_are_mapped_with_gaps_and_negatives() -> None:
    raw = np.array([[-1, 4], [7, 300]])
    assert GAPPED.encode(raw, "here").tolist() == [[IGNORE, 2], [0, 1]]


@pytest.mark.parametrize(
    ("space", "value"), [(SPACE, 3), (SPACE, -1), (SPACE, 256), (GAPPED, 5), (GAPPED, 301)]
)
def test_undefined_values_are_named_with_file_and_count(space: LabelSpace, value: int) -> None:
    raw = np.full((3, 4), 7 if space is GAPPED else 0)
    raw[0, :2] = value
    with pytest.raises(LabelError, match=rf"sun\.png.* {value} \(2 pixels\)"):
        space.encode(raw, "sun.png")


def test_many_undefined_values_are_summed_up() -> None:
    with pytest.raises(LabelError, match="and 12 more values"):
        SPACE.encode(np.arange(3, 23)[None], "sun.png")


def test_colour_images_and_floats_are_refused() -> None:
    with pytest.raises(LabelError, match="single-channel"):
        SPACE.encode(np.zeros((4, 4, 3), np.uint8), "sun.png")
    with pytest.raises(LabelError, match="float"):
        SPACE.encode(np.zeros((4, 4)), "sun.png")


def test_an_empty_map_stays_empty() -> None:
    assert SPACE.encode(np.zeros((0, 5), np.uint8), "here").shape == (0, 5)


@pytest.mark.parametrize(
    ("names", "colours", "raw", "message"),
    [
        ((), (), {}, "at least one"),
        (("a",), (), {}, "1 class names but 0 colours"),
        (tuple(map(str, range(256))), ((0, 0, 0),) * 256, {}, "at most 255"),
        (("a",), ((0, 0, 0),), {5: 1}, r"mapped to \[1\]"),
        (("a", "b", "c", "b", "a"), ((0, 0, 0),) * 5, {}, r"same name \(a, b\)"),
    ],
)
def test_impossible_spaces_are_refused(names, colours, raw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelSpace(names, colours, raw)
