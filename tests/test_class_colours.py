"""Colours of classes that brought none."""

import numpy as np
import pytest

from gmmseg.class_colours import UNKNOWN_COLOUR, default_colours, fresh_colour, oklab


def cielab(colours) -> np.ndarray:
    """CIE 1976 L*a*b* under D65, (n 3), from the definition: another space than the code's."""
    found = []
    for colour in colours:
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)
        )
        x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
        y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
        z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
        fx, fy, fz = (
            t ** (1 / 3) if t > (6 / 29) ** 3 else t / (3 * (6 / 29) ** 2) + 4 / 29 for t in (x, y, z)
        )
        found.append((116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)))
    return np.array(found)


def smallest_distance(places: np.ndarray) -> float:
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    return float(distances[np.triu_indices(len(places), 1)].min())


# A difference of 2.3 is just noticeable in CIELAB.
@pytest.mark.parametrize(("count", "least"), [(12, 18), (19, 16), (32, 11), (150, 5), (255, 3.5)])
def test_the_eye_tells_default_colours_apart_and_from_the_unknown(count, least):
    assert smallest_distance(cielab([UNKNOWN_COLOUR, *default_colours(count)])) > least


def test_fewer_classes_have_the_first_colours():
    assert default_colours(0) == ()
    assert default_colours(5) == default_colours(9)[:5]
    assert len(set(default_colours(255))) == 255


def test_a_fresh_colour_is_none_that_is_taken():
    taken = default_colours(30)
    assert fresh_colour(taken) == default_colours(31)[30]
    assert smallest_distance(cielab([*taken, fresh_colour(taken)])) > 11


def test_oklab_of_white_black_and_red():
    """The values of the space's definition."""
    wanted = [(1, 0, 0), (0, 0, 0), (0.62796, 0.22486, 0.12585)]
    assert np.allclose(oklab([(255, 255, 255), (0, 0, 0), (255, 0, 0)]), wanted, atol=1e-4)
