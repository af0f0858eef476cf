"""Things no training scene holds. Their colours and textures are those of known things; their forms are
not."""

import math
from collections.abc import Callable, Sequence
from random import Random

from gmmseg.data.scenes.canvas import Canvas, Colour, Sketch
from gmmseg.data.scenes.palette import BRICK, CLOTH, DARK, LEAF, PAINT, SIGNAL, STONE, WHITE, WOOD, pick, tone


def animal(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A four-legged body from the side, plain or spotted."""
    coat = pick(rng, WOOD + STONE + CLOTH[:2])
    way = rng.choice((-1, 1))
    length, leg = 1.3 * size, 0.45 * size
    for share in (-0.42, -0.3, 0.3, 0.42):
        drawing.line(
            (x + share * length, 0.6 * size, z),
            (x + share * length + rng.gauss(0, 0.04), 0, z),
            0.1 * size,
            tone(coat, 0.8),
        )
    drawing.ball(x, leg + 0.25 * size, z, length, 0.55 * size, coat)
    neck = x + way * 0.4 * length
    drawing.line((neck, leg + 0.3 * size, z), (neck + way * 0.22 * size, size, z), 0.22 * size, coat)
    drawing.ball(neck + way * 0.25 * size, size, z, 0.42 * size, 0.24 * size, coat)
    if rng.random() < 0.5:
        spot = pick(rng, (WHITE, DARK, *WOOD))
        for _ in range(5):
            drawing.ellipse(
                x + rng.uniform(-0.35, 0.35) * length,
                leg + rng.uniform(0.12, 0.4) * size,
                z,
                0.22 * size,
                0.16 * size,
                spot,
            )
    return 0.1


def crates(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """Boxes stacked askew, with a lid and a tape."""
    y = 0.0
    for level in range(rng.randrange(1, 4)):
        colour = pick(rng, WOOD + BRICK[2:] + PLAIN)
        width, height = size * rng.uniform(0.7, 1.1), size * rng.uniform(0.35, 0.6)
        shift = x + rng.gauss(0, 0.12 * size) * (level > 0)
        left, right, top = shift - width / 2, shift + width / 2, y + height
        back = top + 0.15 * height
        lid = [
            (left, top, z),
            (right, top, z),
            (right + 0.1 * width, back, z),
            (left + 0.15 * width, back, z),
        ]
        drawing.polygon(lid, tone(colour, 1.25))
        drawing.rectangle(shift, y, z, width, height, colour)
        drawing.rectangle(shift, y, z, 0.12 * width, height, tone(colour, 0.7))
        y += height
    return 0.08


def balloons(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A bunch of shining balls, on the ground or above it."""
    lift = rng.choice((0.25, 1.2)) * size
    for _ in range(rng.randrange(1, 6)):
        ball, wide = pick(rng, PAINT + SIGNAL), size * rng.uniform(0.45, 0.7)
        cx, cy = x + rng.gauss(0, 0.3 * size), lift + abs(rng.gauss(0, 0.3 * size))
        drawing.ball(cx, cy, z, wide, 1.1 * wide, tone(ball, 0.85))
        drawing.ellipse(cx - 0.08 * wide, cy + 0.12 * wide, z, 0.6 * wide, 0.65 * wide, ball)
        drawing.ellipse(cx - 0.15 * wide, cy + 0.25 * wide, z, 0.15 * wide, 0.18 * wide, WHITE)
    return 0.03


def barrel(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A barrel or a cone with stripes."""
    narrow = rng.choice((1.0, 0.25))
    first, second = pick(rng, (*SIGNAL, (0.90, 0.42, 0.10))), pick(rng, (WHITE, DARK))
    stripes = rng.randrange(3, 7)
    for stripe in range(stripes):
        low, high = stripe / stripes, (stripe + 1) / stripes
        below, above = (0.35 * size * (1 - (1 - narrow) * share) for share in (low, high))
        band = [
            (x - below, low * size, z),
            (x + below, low * size, z),
            (x + above, high * size, z),
            (x - above, high * size, z),
        ]
        drawing.polygon(band, (first, second)[stripe % 2])
    return 0.04


def sofa(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """Back, seat cushions, arms and feet."""
    colour = pick(rng, CLOTH + LEAF[:3])
    width = 1.8 * size
    drawing.rectangle(x, 0.1 * size, z, width, 0.75 * size, tone(colour, 0.8))
    seats = rng.randrange(2, 4)
    for seat in range(seats):
        middle = x + ((seat + 0.5) / seats - 0.5) * 0.8 * width
        drawing.rectangle(middle, 0.12 * size, z, 0.76 * width / seats, 0.32 * size, colour)
        drawing.rectangle(middle, 0.45 * size, z, 0.74 * width / seats, 0.3 * size, tone(colour, 1.1))
    for arm in (-0.46, 0.46):
        drawing.rectangle(x + arm * width, 0.1 * size, z, 0.12 * width, 0.5 * size, tone(colour, 0.95))
        drawing.rectangle(x + arm * width, 0, z, 0.04 * width, 0.1 * size, DARK)
    return 0.06


def rubble(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A heap of broken pieces."""
    for piece in range(12):
        colour = tone(pick(rng, STONE + BRICK), rng.uniform(0.6, 1.2))
        level = 0.6 * size * (1 - piece / 12)
        cx, wide = x + rng.gauss(0, 0.5 * (size - level)), size * rng.uniform(0.15, 0.4)
        angles = sorted(rng.uniform(0, 2 * math.pi) for _ in range(5))
        drawing.polygon(
            [(cx + wide * math.cos(a), max(0.0, level + 0.7 * wide * math.sin(a)), z) for a in angles], colour
        )
    return 0.15


def tyres(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A stack of rings seen from the side, or one standing upright."""
    rubber = pick(rng, (DARK, (0.18, 0.18, 0.20), *PAINT[:3]))
    if rng.random() < 0.4:
        drawing.ellipse(x, 0.5 * size, z, size, size, rubber)
        drawing.ellipse(x, 0.5 * size, z, 0.5 * size, 0.5 * size, pick(rng, STONE))
        return 0.06
    for level in range(rng.randrange(2, 5)):
        shift = x + rng.gauss(0, 0.05 * size)
        drawing.ellipse(shift, (0.14 + 0.24 * level) * size, z, size, 0.3 * size, tone(rubber, 0.7))
        drawing.ellipse(shift, (0.18 + 0.24 * level) * size, z, 0.95 * size, 0.22 * size, rubber)
    return 0.06


def tent(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """Cloth over a ridge, in panels, with an open flap."""
    colour, half = pick(rng, CLOTH + PAINT + LEAF[:2]), 0.9 * size
    for panel in range(4):
        left, right = -half + panel * half / 2, -half + (panel + 1) * half / 2
        drawing.polygon(
            [(x + left, 0, z), (x + right, 0, z), (x, 1.1 * size, z)], tone(colour, 0.8 + 0.13 * panel)
        )
    drawing.polygon([(x - 0.2 * size, 0, z), (x + 0.2 * size, 0, z), (x, 0.8 * size, z)], tone(colour, 0.3))
    return 0.05


def umbrella(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """Opened, in panels of two colours, set down on its rim or held up by nobody."""
    first, second = pick(rng, CLOTH + SIGNAL), pick(rng, CLOTH + PAINT)
    low, half = rng.choice((0.0, 0.7)) * size, 0.75 * size
    drawing.line((x, 0, z), (x, low + 0.6 * size, z), 0.05 * size, DARK)
    for panel in range(6):
        left, right = (x + half * math.sin(math.pi * (edge / 6 - 0.5)) for edge in (panel, panel + 1))
        ribs = [(left, low, z), ((left + right) / 2, low + 0.06 * size, z), (right, low, z)]
        drawing.polygon(
            [*ribs, (x, low + 0.65 * size, z)], tone((first, second)[panel % 2], 0.8 + 0.07 * panel)
        )
    return 0.04


def suitcases(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """One to three cases side by side, with handles, straps and wheels."""
    place = x - 0.4 * size
    for _ in range(rng.randrange(1, 4)):
        colour = pick(rng, PAINT + CLOTH)
        width, height = size * rng.uniform(0.4, 0.6), size * rng.uniform(0.5, 0.9)
        middle = place + width / 2
        for side in (-0.18, 0.18):
            drawing.line(
                (middle + side * width, height, z), (middle + side * width, 1.25 * height, z), 0.03, DARK
            )
            drawing.ellipse(middle + 2 * side * width, 0.04 * size, z, 0.1 * size, 0.1 * size, DARK)
        drawing.line(
            (middle - 0.2 * width, 1.25 * height, z), (middle + 0.2 * width, 1.25 * height, z), 0.05, DARK
        )
        drawing.rectangle(middle, 0.06 * size, z, width, height, colour)
        for strap in (-0.28, 0.28):
            drawing.rectangle(
                middle + strap * width, 0.06 * size, z, 0.08 * width, height, tone(colour, 0.65)
            )
        place += width * rng.uniform(1.0, 1.2)
    return 0.05


def trunk(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A felled trunk across the street, its cut face with rings, and stumps of branches."""
    bark, way = pick(rng, WOOD), rng.choice((-1, 1))
    length, thick = 2.2 * size, 0.42 * size
    for share in (-0.25, 0.05, 0.3):
        root = (x + share * length, 0.8 * thick, z)
        drawing.line(
            root, (root[0] + rng.gauss(0, 0.2) * size, 1.5 * thick, z), 0.12 * size, tone(bark, 0.85)
        )
    for band in range(4):
        low, colour = band * thick / 4, tone(bark, 0.65 + 0.17 * band)
        drawing.rectangle(x, low, z, length, thick / 4, colour)
    end = x + way * length / 2
    for ring, shade in ((1.0, 0.8), (0.8, 1.5), (0.5, 1.3), (0.25, 1.5)):
        drawing.ellipse(end, thick / 2, z, 0.7 * thick * ring, thick * ring, tone(bark, shade))
    return 0.12


def cart(drawing: Sketch, x: float, z: float, size: float, rng: Random) -> float:
    """A two-wheeled cart heaped with sacks, its shafts on the ground."""
    wood, way = pick(rng, WOOD + PAINT[3:8]), rng.choice((-1, 1))
    drawing.line(
        (x + way * 0.5 * size, 0.5 * size, z), (x + way * 1.4 * size, 0.05, z), 0.08 * size, tone(wood, 0.8)
    )
    for _ in range(5):
        sack, middle = pick(rng, CLOTH[4:8] + STONE), x + rng.uniform(-0.45, 0.45) * size
        drawing.ball(middle, rng.uniform(0.75, 1.0) * size, z, 0.5 * size, 0.35 * size, sack)
    drawing.rectangle(x, 0.4 * size, z, 1.3 * size, 0.3 * size, wood)
    for board in (0.5, 0.6):
        drawing.rectangle(x, board * size, z, 1.3 * size, 0.02 * size, tone(wood, 0.6))
    drawing.ellipse(x, 0.36 * size, z, 0.72 * size, 0.72 * size, tone(wood, 0.55))
    drawing.ellipse(x, 0.36 * size, z, 0.58 * size, 0.58 * size, tone(wood, 1.1))
    for spoke in range(3):
        turn = math.pi * spoke / 3 + 0.3
        across, up = 0.3 * size * math.cos(turn), 0.3 * size * math.sin(turn)
        ends = (x - across, 0.36 * size - up, z), (x + across, 0.36 * size + up, z)
        drawing.line(*ends, 0.05 * size, tone(wood, 0.55))
    return 0.06


PLAIN: tuple[Colour, ...] = ((0.66, 0.52, 0.36), (0.50, 0.52, 0.55))
Kind = Callable[[Sketch, float, float, float, Random], float]
"""Draws one thing of a given size at (x, z); returns how rough it is."""
FIRST_KINDS: tuple[Kind, ...] = (animal, crates, balloons, barrel, sofa, rubble, tyres, tent)
MORE_KINDS: tuple[Kind, ...] = (*FIRST_KINDS, umbrella, suitcases, trunk, cart)


def paint_stranger(
    canvas: Canvas, x: float, z: float, label: int, rng: Random, kinds: Sequence[Kind] = FIRST_KINDS
) -> None:
    """One unknown thing of some of ``kinds`` standing at (x, z)."""
    kind = kinds[rng.randrange(len(kinds))]
    size = rng.uniform(0.7, 1.7)
    drawing = canvas.sketch(rng)
    roughness = kind(drawing, x, z, size, rng)
    canvas.shade(x, z, 0.6 * size)
    canvas.place(drawing, label, z, roughness)
