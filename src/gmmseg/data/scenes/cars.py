"""Cars: saloons, hatchbacks and vans, from behind, from ahead and from the side."""

import math
from dataclasses import dataclass
from random import Random

from gmmseg.data.scenes.canvas import Canvas, Colour, Sketch
from gmmseg.data.scenes.palette import CAR, DARK, PAINT, WHITE, pick, tone

GLASS: Colour = (0.16, 0.19, 0.22)


@dataclass(frozen=True)
class Car:
    """``outline`` from behind to ahead as (share of the length, metres up); length and width in metres."""

    outline: list[tuple[float, float]]
    length: float
    width: float
    paint: Colour

    @classmethod
    def draw(cls, rng: Random) -> "Car":
        """A saloon, a hatchback or a van."""
        paint, kind = pick(rng, PAINT), rng.randrange(3)
        roof, waist = rng.uniform(1.35, 1.6), rng.uniform(0.8, 0.95)
        if kind == 0:
            outline = _outline(waist, roof, 0.75, (0.16, 0.28, 0.6, 0.75))
            return cls(outline, rng.uniform(4.2, 4.9), rng.uniform(1.7, 1.9), paint)
        if kind == 1:
            outline = _outline(waist, roof, 0.75, (0.03, 0.12, 0.6, 0.78))
            return cls(outline, rng.uniform(3.4, 4.1), rng.uniform(1.6, 1.8), paint)
        outline = _outline(1.1, rng.uniform(1.9, 2.8), 0.9, (0, 0.01, 0.75, 0.88))
        return cls(outline, rng.uniform(4.6, 7.0), rng.uniform(1.9, 2.3), paint)


def _outline(
    waist: float, roof: float, nose: float, shares: tuple[float, float, float, float]
) -> list[tuple[float, float]]:
    boot, back, front, bonnet = shares
    behind, cabin = [(0, 0.35), (0, waist)], [(boot, waist), (back, roof), (front, roof), (bonnet, waist)]
    return [*behind, *cabin, (1, nose), (1, 0.35)]


def paint_car(canvas: Canvas, x: float, z: float, rng: Random) -> None:
    """A car seen from behind or ahead along the street, or from the side across it."""
    drawing, car = canvas.sketch(rng), Car.draw(rng)
    canvas.shade(x, z + 0.3, 1.2 * car.width / 2)
    if rng.random() < 0.2:
        _draw_crossing(drawing, car, x, z, rng)
    else:
        _draw_side(drawing, car, x, z)
        _draw_end(drawing, car, x, z, rng)
    canvas.place(drawing, CAR, z, roughness=0.03)


def _draw_side(drawing: Sketch, car: Car, x: float, z: float) -> None:
    """The flank that faces the middle of the street."""
    side = x - math.copysign(car.width / 2, x)
    waist, roof = car.outline[1][1] + 0.06, car.outline[3][1] - 0.1

    def at(share: float, y: float) -> tuple[float, float, float]:
        inwards = math.copysign(0.15, x) if y > waist else 0.0  # a cabin is narrower than what carries it
        return side + inwards, y, z + share * car.length

    drawing.polygon([at(share, y) for share, y in car.outline], tone(car.paint, 0.75))
    drawing.glass([at(0.2, waist), at(0.68, waist), at(0.58, roof), at(0.3, roof)], GLASS)
    for share in (0.2, 0.8):
        _, _, hub = at(share, 0)
        turns = [math.tau * step / 10 for step in range(10)]
        drawing.polygon([(side, 0.33 + 0.33 * math.sin(a), hub + 0.33 * math.cos(a)) for a in turns], DARK)


def _draw_end(drawing: Sketch, car: Car, x: float, z: float, rng: Random) -> None:
    """The end that faces the camera: window, boot or bonnet, lamps, number plate, wheels."""
    waist, roof = car.outline[1][1], car.outline[3][1]
    left, right, slope = x - car.width / 2, x + car.width / 2, z + car.outline[3][0] * car.length

    def pane(gap: float, low: float, high: float) -> list[tuple[float, float, float]]:
        lower, upper = (left + gap, right - gap), (left + gap + 0.15, right - gap - 0.15)
        return [(lower[0], low, z), (lower[1], low, z), (upper[1], high, slope), (upper[0], high, slope)]

    drawing.polygon(pane(0, waist, roof), car.paint)
    drawing.glass(pane(0.14, waist + 0.05, roof - 0.1), GLASS)
    drawing.rectangle(x, 0.3, z, car.width, waist - 0.3, car.paint)
    drawing.rectangle(x, 0.3, z, car.width, 0.15, tone(car.paint, 0.6))
    lamp = rng.choice(((0.75, 0.08, 0.06), (0.95, 0.93, 0.80)))
    for place in (x - 0.4 * car.width, x + 0.4 * car.width):
        drawing.rectangle(place, 0.62, z, 0.16 * car.width, 0.13, lamp)
        drawing.rectangle(place, 0, z, 0.12 * car.width, 0.32, DARK)
    drawing.rectangle(x, 0.48, z, 0.5, 0.12, WHITE)


def _draw_crossing(drawing: Sketch, car: Car, x: float, z: float, rng: Random) -> None:
    way = rng.choice((-1, 1))

    def at(share: float, y: float) -> tuple[float, float, float]:
        return x + way * (share - 0.5) * car.length, y, z

    waist, roof = car.outline[1][1], car.outline[3][1]
    drawing.polygon([at(share, y) for share, y in car.outline], car.paint)
    drawing.glass([at(0.2, waist), at(0.7, waist), at(0.58, roof - 0.1), at(0.3, roof - 0.1)], GLASS)
    drawing.line(at(0.45, waist), at(0.45, roof), 0.08, car.paint)
    for share in (0.2, 0.8):
        hub, _, _ = at(share, 0)
        drawing.ellipse(hub, 0.33, z, 0.66, 0.66, DARK)
        drawing.ellipse(hub, 0.33, z, 0.3, 0.3, (0.5, 0.5, 0.5))
