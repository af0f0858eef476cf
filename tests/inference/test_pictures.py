import io

import numpy as np
import pytest
from PIL import Image

from gmmseg.inference.pictures import (
    default_colours,
    heat_colours,
    heat_limits,
    heat_map,
    label_picture,
    mask_picture,
    overlay,
)
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


def test_an_overlay_mixes_image_and_colours_and_stripes_the_unknown():
    pixels = np.full((40, 40, 3), 100, np.uint8)
    labels = np.zeros((40, 40), np.uint8)
    unknown = np.zeros((40, 40), bool)
    unknown[:20] = True
    mixed = np.asarray(overlay(pixels, labels, COLOURS, unknown, opacity=0.25))
    assert np.all(mixed[20:] == (125, 78, 80))
    white = (mixed[:20] == 255).all(-1)
    assert white.mean() == 0.5


def test_masks_are_black_and_white():
    mask = np.array([[True, False, True]])
    assert np.asarray(through_png(mask_picture(mask))).tolist() == [[255, 0, 255]]


def test_heat_grows_brighter_with_the_score_and_clips():
    colours = heat_colours(np.linspace(-5, 7, 50), -3, 5).astype(int)
    brightness = colours @ np.array([299, 587, 114])
    assert (np.diff(brightness) >= 0).all()
    assert brightness[0] < 1000 < 200_000 < brightness[-1]


def test_limits_ignore_outliers_and_reach_the_threshold():
    scores = np.r_[np.linspace(0, 1, 1001), 1e9, np.inf, -np.inf].astype(np.float32)
    low, high = heat_limits(scores)
    assert (low, high) == pytest.approx((0.01, 0.99), abs=0.01)
    assert heat_limits(scores, threshold=7.0) == (low, 7.0)
    assert heat_limits(scores, threshold=-7.0) == (low, high)
    assert heat_limits(np.array([np.inf])) == (0.0, 1.0)


@pytest.mark.parametrize("size", [(1, 1), (37, 500), (3, 8192)])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_heat_map_is_the_scores_above_a_bar_with_numbers(size, threshold):
    scores = np.random.default_rng(0).random(size, np.float32)
    picture = np.asarray(heat_map(scores, threshold))
    height, width = size
    assert np.array_equal(picture[:height, :width], heat_colours(scores, *heat_limits(scores, threshold)))
    bar = picture[height:]
    assert bar.shape[0] >= 40
    assert bar.shape[1] == max(width, 260)
    assert (bar == 255).all(-1).any(), "paper"
    numbers = bar[-bar.shape[0] // 2 :]
    assert (numbers.astype(int).sum(-1) < 300).sum() > 20, "ink"


def test_scores_without_spread_or_finite_values_have_a_map_too():
    for scores in (np.full((4, 4), 3.0), np.full((4, 4), np.inf), np.full((4, 4), -np.inf)):
        assert heat_map(scores.astype(np.float32), 2.0).height > 4


def test_default_colours_are_distinct():
    assert len(set(default_colours(19))) == 19
    assert len(default_colours(150)) == 150
