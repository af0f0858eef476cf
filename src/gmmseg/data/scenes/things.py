"""What stands in the street: trees, poles, signs, people. Each class has several appearances."""

import math
from random import Random

from gmmseg.data.scenes.canvas import Canvas, Colour, Sketch
from gmmseg.data.scenes.palette import (
    CLOTH,
    DARK,
    HAIR,
    LEAF,
    METAL,
    PERSON,
    POLE,
    SIGN,
    SIGNAL,
    SKIN,
    VEGETATION,
    WHITE,
    WOOD,
    pick,
    tone,
)


def paint_tree(canvas: Canvas, x: float, z: float, rng: Random) -> None:
    """Broad, pointed, bare or bush."""
    height = rng.uniform(3.5, 9)
    if not canvas.camera.sees(x, z, height / 2):
        return
    drawing = canvas.sketch(rng)
    leaf, bark = pick(rng, LEAF), pick(rng, WOOD)
    kind = rng.choices(range(4), (0.5, 0.2, 0.12, 0.18))[0]
    if kind < 3:
        drawing.rectangle(x, 0, z, 0.06 * height, 0.5 * height, bark)
    if kind == 0:
        _draw_broad_crown(drawing, x, z, height, leaf, rng)
    elif kind == 1:
        _draw_pointed_crown(drawing, x, z, height, leaf)
    elif kind == 2:
        _draw_bare_branches(drawing, x, z, height, bark, rng)
    else:
        _draw_bush(drawing, x, z, leaf, rng)
    canvas.shade(x, z, 0.15 * height)
    canvas.place(drawing, VEGETATION, z, roughness=0.25)


def _draw_broad_crown(drawing: Sketch, x: float, z: float, height: float, leaf: Colour, rng: Random) -> None:
    for _ in range(7):
        dx, dy = rng.gauss(0, 0.13 * height), rng.uniform(0.45, 0.85) * height
        spread = rng.uniform(0.3, 0.5) * height
        drawing.foliage(x + dx, dy, z, spread, 0.8 * spread, tone(leaf, rng.uniform(0.75, 1.2)))


def _draw_pointed_crown(drawing: Sketch, x: float, z: float, height: float, leaf: Colour) -> None:
    for step in range(4):
        low, half = (0.15 + 0.2 * step) * height, (0.24 - 0.045 * step) * height
        top = low + 0.35 * height
        drawing.polygon([(x - half, low, z), (x + half, low, z), (x, top, z)], tone(leaf, 0.7 + 0.1 * step))


def _draw_bare_branches(
    drawing: Sketch, x: float, z: float, height: float, bark: Colour, rng: Random
) -> None:
    for _ in range(12):
        start, angle = rng.uniform(0.3, 0.6) * height, rng.gauss(0, 0.7)
        reach = rng.uniform(0.3, 0.5) * height
        tip = (x + reach * math.sin(angle), start + reach * math.cos(angle), z)
        drawing.line((x, start, z), tip, 0.05, bark)


def _draw_bush(drawing: Sketch, x: float, z: float, leaf: Colour, rng: Random) -> None:
    for _ in range(4):
        spread = rng.uniform(0.8, 1.8)
        dx = rng.gauss(0, 0.5)
        drawing.foliage(x + dx, 0.4 * spread, z, spread, 0.8 * spread, tone(leaf, rng.uniform(0.8, 1.2)))


def paint_pole(canvas: Canvas, x: float, z: float, rng: Random) -> None:
    """A street lamp, a wooden mast, a traffic light or a bollard."""
    drawing = canvas.sketch(rng)
    kind = rng.randrange(4)
    height = (rng.uniform(4, 8), rng.uniform(5, 8), rng.uniform(2.6, 3.5), rng.uniform(0.8, 1.1))[kind]
    colour = pick(rng, (METAL, WOOD, METAL, SIGNAL + METAL)[kind])
    drawing.rectangle(x, 0, z, (0.13, 0.22, 0.12, 0.2)[kind], height, colour)
    if kind == 0:
        reach = -math.copysign(rng.uniform(0.6, 1.6), x)
        drawing.line((x, height, z), (x + reach, height + 0.2, z), 0.1, colour)
    elif kind == 1:
        drawing.line((x - 0.9, height - 0.5, z), (x + 0.9, height - 0.5, z), 0.12, colour)
    elif kind == 2:
        drawing.rectangle(x, height - 0.9, z, 0.32, 0.9, DARK)
        lamp = rng.randrange(3)
        drawing.ellipse(
            x,
            height - 0.2 - 0.27 * lamp,
            z,
            0.2,
            0.2,
            ((0.95, 0.2, 0.15), (0.95, 0.7, 0.1), (0.2, 0.9, 0.4))[lamp],
        )
    else:
        drawing.rectangle(x, 0.6 * height, z, 0.2, 0.15, WHITE)
    canvas.shade(x, z, 0.2)
    canvas.place(drawing, POLE, z, roughness=0.05)


def paint_sign(canvas: Canvas, x: float, z: float, rng: Random) -> None:
    """A plate on a post: disc, triangle, square, diamond or a board with stripes."""
    post, plate = canvas.sketch(rng), canvas.sketch(rng)
    low, size = rng.uniform(1.7, 2.6), rng.uniform(0.6, 1.1)
    colour, middle = pick(rng, SIGNAL), low + size / 2
    post.rectangle(x, 0, z, 0.09, low + 0.2, pick(rng, METAL))
    kind = rng.randrange(5)
    if kind == 0:
        plate.ellipse(x, middle, z, size, size, colour)
        plate.ellipse(x, middle, z, 0.65 * size, 0.65 * size, WHITE)
    elif kind == 1:
        for scale, paint in ((1.0, colour), (0.6, WHITE)):
            half = size * scale / 2
            plate.polygon(
                [
                    (x - half, middle - 0.8 * half, z),
                    (x + half, middle - 0.8 * half, z),
                    (x, middle + half, z),
                ],
                paint,
            )
    elif kind == 2:
        plate.rectangle(x, low, z, size, size, colour)
        plate.rectangle(x, low + 0.25 * size, z, 0.3 * size, 0.5 * size, WHITE)
    elif kind == 3:
        half = size / 2
        plate.polygon(
            [(x - half, middle, z), (x, middle - half, z), (x + half, middle, z), (x, middle + half, z)],
            colour,
        )
    else:
        width = size * rng.uniform(1.5, 2.5)
        plate.rectangle(x, low, z, width, size, pick(rng, (WHITE, *SIGNAL)))
        for line in range(3):
            plate.rectangle(x, low + (0.2 + 0.25 * line) * size, z, 0.8 * width, 0.1 * size, colour)
    canvas.place(post, POLE, z, roughness=0.05)
    canvas.place(plate, SIGN, z, roughness=0.05)


def paint_person(canvas: Canvas, x: float, z: float, rng: Random) -> None:
    """Grown-up or child, walking or standing, in trousers, a skirt or a long coat."""
    drawing = canvas.sketch(rng)
    size = rng.uniform(1.05, 1.95)
    top, trousers, skin = pick(rng, CLOTH), pick(rng, CLOTH), pick(rng, SKIN)
    step, width = rng.uniform(0, 0.16) * size, rng.uniform(0.22, 0.32) * size
    hip, shoulder = 0.48 * size, 0.82 * size
    for foot in (-1, 1):
        drawing.line((x + 0.05 * foot, hip, z), (x + step * foot, 0.02, z), 0.085 * size, trousers)
    kind = rng.randrange(3)
    hem, flare = ((hip, 0.42), (0.28 * size, 0.75), (0.2 * size, 0.55))[kind]
    if kind:
        drawing.polygon(
            [(x - width * flare, hem, z), (x + width * flare, hem, z), (x, shoulder, z)],
            trousers if kind == 1 else top,
        )
    below, above = 0.42 * width, width / 2
    torso = [(x - below, hip, z), (x + below, hip, z), (x + above, shoulder, z), (x - above, shoulder, z)]
    drawing.polygon(torso, top)
    if rng.random() < 0.3:
        for stripe in range(3):
            drawing.rectangle(
                x, hip + (0.05 + 0.1 * stripe) * size, z, 0.8 * width, 0.04 * size, tone(top, 1.5)
            )
    for arm in (-1, 1):
        reach = rng.uniform(0.4, 0.9) * width
        drawing.line(
            (x + arm * width / 2, shoulder, z), (x + arm * reach, hip, z), 0.06 * size, tone(top, 0.85)
        )
    if rng.random() < 0.25:
        side = rng.choice((-1, 1))
        drawing.rectangle(x + side * 0.6 * width, hip, z, 0.5 * width, 0.22 * size, pick(rng, CLOTH))
    drawing.ball(x, 0.9 * size, z, 0.13 * size, 0.17 * size, skin)
    drawing.ball(x, 0.95 * size, z, 0.14 * size, 0.09 * size, pick(rng, HAIR + CLOTH))
    canvas.shade(x, z, 0.35)
    canvas.place(drawing, PERSON, z, roughness=0.08)
