"""The classes of the built-in scenes and the colours of things.

Paint, cloth and masonry are shared by several classes on purpose.
"""

from random import Random

from gmmseg.data.scenes.canvas import Colour

ROAD, PAVEMENT, BUILDING, FENCE, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = range(10)
"""Train ids."""

PAINT: tuple[Colour, ...] = (
    (0.85, 0.85, 0.86), (0.12, 0.12, 0.14), (0.50, 0.52, 0.55), (0.65, 0.12, 0.12), (0.15, 0.25, 0.55),
    (0.10, 0.35, 0.25), (0.80, 0.68, 0.20), (0.55, 0.35, 0.20), (0.80, 0.45, 0.15), (0.45, 0.62, 0.72),
)  # fmt: skip
CLOTH: tuple[Colour, ...] = (
    (0.15, 0.16, 0.20), (0.80, 0.80, 0.78), (0.20, 0.28, 0.48), (0.62, 0.18, 0.18), (0.35, 0.38, 0.30),
    (0.75, 0.60, 0.25), (0.55, 0.45, 0.38), (0.45, 0.25, 0.45), (0.25, 0.45, 0.40), (0.80, 0.50, 0.55),
)  # fmt: skip
SKIN: tuple[Colour, ...] = ((0.90, 0.74, 0.62), (0.76, 0.57, 0.43), (0.55, 0.38, 0.27), (0.36, 0.24, 0.18))
HAIR: tuple[Colour, ...] = ((0.10, 0.08, 0.07), (0.35, 0.22, 0.12), (0.70, 0.55, 0.30), (0.60, 0.60, 0.60))
BRICK: tuple[Colour, ...] = ((0.55, 0.28, 0.22), (0.45, 0.30, 0.24), (0.66, 0.54, 0.36), (0.62, 0.40, 0.28))
STONE: tuple[Colour, ...] = ((0.55, 0.55, 0.54), (0.66, 0.64, 0.60), (0.45, 0.45, 0.47), (0.60, 0.56, 0.50))
PLASTER: tuple[Colour, ...] = (
    (0.86, 0.82, 0.70), (0.80, 0.66, 0.52), (0.72, 0.78, 0.78), (0.84, 0.72, 0.70), (0.70, 0.76, 0.62),
    (0.88, 0.88, 0.85),
)  # fmt: skip
LEAF: tuple[Colour, ...] = (
    (0.24, 0.40, 0.16), (0.16, 0.30, 0.14), (0.40, 0.48, 0.18), (0.72, 0.48, 0.14), (0.62, 0.28, 0.12),
    (0.10, 0.22, 0.18), (0.82, 0.66, 0.70),
)  # fmt: skip
WOOD: tuple[Colour, ...] = ((0.38, 0.27, 0.18), (0.28, 0.21, 0.16), (0.55, 0.42, 0.28))
METAL: tuple[Colour, ...] = ((0.50, 0.52, 0.53), (0.25, 0.27, 0.28), (0.16, 0.26, 0.22), (0.70, 0.70, 0.68))
SIGNAL: tuple[Colour, ...] = ((0.78, 0.12, 0.12), (0.12, 0.28, 0.65), (0.92, 0.78, 0.14), (0.10, 0.45, 0.28))
WHITE: Colour = (0.92, 0.92, 0.90)
DARK: Colour = (0.08, 0.09, 0.11)


def pick(rng: Random, colours: tuple[Colour, ...]) -> Colour:
    """One of ``colours``, slightly off, as every real thing is."""
    red, green, blue = rng.choice(colours)
    bright = rng.uniform(0.85, 1.15)
    return (
        red * bright + rng.gauss(0, 0.02),
        green * bright + rng.gauss(0, 0.02),
        blue * bright + rng.gauss(0, 0.02),
    )


def tone(colour: Colour, factor: float) -> Colour:
    """The colour, lighter or darker."""
    return colour[0] * factor, colour[1] * factor, colour[2] * factor
