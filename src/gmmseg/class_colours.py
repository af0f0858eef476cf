"""Colours of classes that brought none: pleasant, and as far apart for the eye as their number allows.

Distances are those of Oklab (Björn Ottosson, 2020), in which equal steps look about equally large; two
colours side by side are told apart from about 0.02 on.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Colours = tuple[Colour, ...]
UNKNOWN_COLOUR: Colour = (0, 220, 255)
"""Outline and tint of what is unknown; colours made here stay away from it."""

_FIRST: Colour = (70, 120, 190)
_LIGHTNESS, _CHROMA = (0.48, 0.86), (0.05, 0.17)  # neither gloomy nor glaring
_LEVELS = range(20, 256, 9)

_TO_CONES = ((0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
             (0.0883024619, 0.2817188376, 0.6299787005))  # fmt: skip
_TO_OKLAB = ((0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
             (0.0259040371, 0.7827717662, -0.8086757660))  # fmt: skip


def oklab(colours: Sequence[Colour]) -> NDArray[np.float64]:
    """Lightness and the two axes of colour, (n 3), of colours in sRGB."""
    share = np.array(colours, np.float64).reshape(-1, 3) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ np.array(_TO_CONES).T) @ np.array(_TO_OKLAB).T


@cache
def default_colours(count: int) -> Colours:
    """``count`` colours that are easy to tell apart; those of fewer classes are the first of them."""
    first = (_FIRST,)[:count]
    return (*first, *_farthest((UNKNOWN_COLOUR, *first), count - len(first)))


def fresh_colour(taken: Sequence[Colour]) -> Colour:
    """One more colour, the farthest from all that are taken."""
    return _farthest((UNKNOWN_COLOUR, *taken), 1)[0]


def _farthest(taken: Sequence[Colour], count: int) -> list[Colour]:
    """``count`` pleasant colours, each the farthest from ``taken`` and from those before it."""
    candidates, places = _pleasant()
    nearest = np.full(len(candidates), np.inf)
    for place in oklab(taken):
        nearest = np.minimum(nearest, np.linalg.norm(places - place, axis=1))
    chosen = []
    for _ in range(count):
        best = int(nearest.argmax())
        chosen.append(candidates[best])
        nearest = np.minimum(nearest, np.linalg.norm(places - places[best], axis=1))
    return chosen


@cache
def _pleasant() -> tuple[Colours, NDArray[np.float64]]:
    """Colours of a grid that are neither dark, bright, grey nor glaring, and their places in Oklab (n 3)."""
    grid = tuple((red, green, blue) for red in _LEVELS for green in _LEVELS for blue in _LEVELS)
    places = oklab(grid)
    lightness, chroma = places[:, 0], np.hypot(places[:, 1], places[:, 2])
    fits = (lightness >= _LIGHTNESS[0]) & (lightness <= _LIGHTNESS[1])
    fits &= (chroma >= _CHROMA[0]) & (chroma <= _CHROMA[1])
    return tuple(grid[index] for index in np.flatnonzero(fits)), places[fits]
