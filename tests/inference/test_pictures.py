import io
import itertools

import numpy as np
import pytest
from PIL import Image

from gmmseg.class_colours import UNKNOWN_COLOUR, default_colours
from gmmseg.inference.pictures import label_picture, legend, mask_picture, overlay, stacked
from gmmseg.labels import IGNORE

COLOURS = ((200, 10, 20), (30, 220, 40))


def through_png(picture: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return Image.open(buffer)


def test_a_label_picture_keeps_the_labels_and_shows_their_colours():
    labels = np.array([[0, 1], [1, IGNORE]], np.uint8)
    picture = through_png(label_picture(labels, COLOURS))
    assert picture.mode == "P"
    assert np.array_equal(np.asarray(picture), labels)
    assert np.asarray(picture.convert("RGB")).tolist() == [
        [[200, 10, 20], [30, 220, 40]],
        [[30, 220, 40], [0, 0, 0]],
    ]


def test_an_overlay_mixes_image_and_colours_and_outlines_the_unknown():
    pixels = np.full((40, 40, 3), 100, np.uint8)
    labels = np.zeros((40, 40), np.uint8)
    unknown = np.zeros((40, 40), bool)
    unknown[10:20, 5:25] = True
    mixed = np.asarray(overlay(pixels, labels, COLOURS, unknown, opacity=0.25))
    outline = (mixed == UNKNOWN_COLOUR).all(-1)
    # By the definition: pixels outside with a neighbour inside.
    wanted = np.zeros_like(unknown)
    for y, x in itertools.product(range(40), range(40)):
        near = [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        wanted[y, x] = not unknown[y, x] and any(unknown[v, u] for v, u in near if v < 40 and u < 40)
    assert np.array_equal(outline, wanted)
    assert np.all(mixed[~unknown & ~outline] == (125, 78, 80))
    tint = (0.75 * 100 + 0.25 * np.array(UNKNOWN_COLOUR)).round()
    assert np.all(mixed[unknown] == tint), "the photograph, without its class's colour"


def test_an_overlay_in_which_nothing_is_unknown_is_the_plain_one():
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    labels = np.zeros((9, 7), np.uint8)
    nothing = overlay(pixels, labels, COLOURS, labels > 0)
    assert np.array_equal(nothing, overlay(pixels, labels, COLOURS))


@pytest.mark.parametrize("width", [60, 480, 4000])
def test_a_legend_shows_every_colour_within_its_width(width):
    names = ["road", "sky", "a name with many words " * 9, "line\nbreak"]
    colours = default_colours(4)
    strip = np.asarray(legend(names, colours, width=width, unknown=True))
    assert strip.shape[1] == width
    for colour in (*colours, UNKNOWN_COLOUR):
        assert (strip == colour).all(-1).any()
    assert (strip[:, -1] == 255).all(), "nothing is cut off at the border"
    assert not (np.asarray(legend(names, colours, width=width)) == UNKNOWN_COLOUR).all(-1).any()
    assert legend([], [], width=width).width == width


def test_pictures_are_stacked_without_a_gap():
    first, second = Image.new("RGB", (3, 2), (1, 2, 3)), Image.new("RGB", (5, 4), (4, 5, 6))
    sheet = np.asarray(stacked(first, second))
    assert sheet.shape == (6, 5, 3)
    assert np.array_equal(sheet[:2, :3], first)
    assert np.array_equal(sheet[2:], second)


def test_masks_are_black_and_white():
    mask = np.array([[True, False, True]])
    assert np.asarray(through_png(mask_picture(mask))).tolist() == [[255, 0, 255]]
