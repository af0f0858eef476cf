"""One street scene from start to end: weather, ground, lots on both sides, things, and its photograph."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageFilter

from gmmseg.data.scenes.buildings import DetailedFacade, Facade, paint_building, paint_fence, paint_skyline
from gmmseg.data.scenes.camera import Camera
from gmmseg.data.scenes.canvas import Canvas, rgb
from gmmseg.data.scenes.cars import paint_car
from gmmseg.data.scenes.ground import Street, paint_ground
from gmmseg.data.scenes.strangers import FIRST_KINDS, MORE_KINDS, Kind, paint_stranger
from gmmseg.data.scenes.sunlight import Sun, SunlitCanvas
from gmmseg.data.scenes.things import paint_person, paint_pole, paint_sign, paint_tree
from gmmseg.data.scenes.weather import Weather, draw_weather, light_up, paint_sky

STRANGER = 254
"""Label of an unknown thing while the scene is painted."""


@dataclass(frozen=True)
class Look:
    """How scenes are drawn: what they are painted on, what their buildings are, and what may be unknown."""

    canvas: Callable[[Camera, Weather, tuple[int, ...], np.random.Generator], Canvas]
    facade: type[Facade]
    strangers: tuple[Kind, ...]


Paint = Callable[[Canvas, float, float, Random], None]
"""Paints one thing that stands at (x, z)."""


def plain_canvas(
    camera: Camera, weather: Weather, key: tuple[int, ...], grain: np.random.Generator
) -> Canvas:
    """Flat faces, and a blot of shade under things."""
    return Canvas(camera, grain)


def sunlit_canvas(
    camera: Camera, weather: Weather, key: tuple[int, ...], grain: np.random.Generator
) -> Canvas:
    """Natural light; where it comes from has randomness of its own, so that streets are the same in both."""
    return SunlitCanvas(camera, grain, Sun.draw(Random(f"sun {key}"), weather))


PLAIN = Look(plain_canvas, Facade, FIRST_KINDS)
SUNLIT = Look(sunlit_canvas, DetailedFacade, MORE_KINDS)


def draw_scene(
    key: tuple[int, ...], size: tuple[int, int], strangers: bool, look: Look = PLAIN
) -> tuple[np.ndarray, np.ndarray]:
    """The scene named by ``key``: image (h w 3) uint8 and labels (h w) uint8, unknown things as STRANGER.

    What is in the scene depends on ``key`` alone; ``size`` (height, width) changes only how finely it is
    drawn, and ``strangers`` adds unknown things to the very same scene.
    """
    rng, strange = Random(f"scene {key}"), Random(f"strangers {key}")
    grain = np.random.default_rng(key)
    camera, street, weather = Camera.draw(rng, size), Street.draw(rng), draw_weather(rng)
    canvas = look.canvas(camera, weather, key, grain)
    paint_sky(canvas, weather, rng)
    paint_skyline(canvas, street, weather, rng)
    paint_ground(canvas, street, weather, rng)
    _paint_lots(canvas, street, weather, rng, look.facade)
    _paint_things(canvas, street, rng, _strangers(strange, street, look) if strangers else [])
    canvas.finish()
    light_up(canvas, weather, rng)
    return _photograph(canvas, rng, grain), canvas.labels


def _own(rng: Random) -> Random:
    """A thing's own randomness: what it draws does not depend on whether others were in view."""
    return Random(rng.getrandbits(64))


def _paint_lots(
    canvas: Canvas, street: Street, weather: Weather, rng: Random, facade_kind: type[Facade]
) -> None:
    """Buildings and parks along both sides, farthest first so that near ones hide far ones."""
    for side in (-1, 1):
        start, parkland, before = rng.uniform(1, 6), rng.uniform(0.1, 0.6), 0.0
        lots = []
        while start < street.length:
            end, own = start + rng.uniform(6, 18), _own(rng)
            facade = None if rng.random() < parkland else facade_kind(own, weather)
            lots.append((start, end, facade, before, own))
            start, before = end, facade.height if facade else 0.0
        for start, end, facade, before, own in reversed(lots):
            edge = street.edge(side) + side * own.choice((0.2, 0.2, 1.0))
            if facade is None:
                _paint_park(canvas, edge, start, end, own)
            else:
                paint_building(canvas, facade, edge, start, end, own, end_wall=before < facade.height)


def _paint_park(canvas: Canvas, edge: float, start: float, end: float, rng: Random) -> None:
    """Trees behind a fence, or without one."""
    for z in sorted((rng.uniform(max(start, 2.5), end + 1) for _ in range(rng.randrange(4))), reverse=True):
        paint_tree(canvas, edge + math.copysign(rng.uniform(1.5, 8), edge), z, _own(rng))
    if rng.random() < 0.7:
        paint_fence(canvas, edge, start, end, rng)


Thing = tuple[float, Paint, float, Random]
"""Distance, painter, place across the street, and its own randomness."""


def _scattered(
    paint: Paint, count: int, across: tuple[float, float], depth: tuple[float, float], rng: Random
) -> list[Thing]:
    """``count`` things between two places ``across`` the street and two distances."""
    things, (near, far) = [], depth
    for _ in range(count):
        # Uniform in 1/z: as many near things as far ones in the picture, as a driver sees them.
        z = 1 / rng.uniform(1 / far, 1 / near)
        things.append((z, paint, rng.uniform(*sorted(across)), _own(rng)))
    return things


def _paint_things(canvas: Canvas, street: Street, rng: Random, strangers: list[Thing]) -> None:
    """Cars, people, poles, signs and street trees, farthest first, and ``strangers`` among them."""
    far = min(45.0, street.length)
    things = _scattered(paint_car, rng.randrange(4), (street.left + 1, street.right - 1), (6, far), rng)
    for side in (-1, 1):
        kerb, edge = street.kerb(side), street.edge(side)
        parked = (kerb - side * 1.1, kerb - side * 0.9)
        things += _scattered(paint_car, rng.randrange(3), parked, (5, far), rng)
        things += _scattered(paint_person, rng.randrange(4), (kerb, edge), (3.5, 20), rng)
        things += _scattered(paint_pole, rng.randrange(3), (kerb, edge), (4, 30), rng)
        things += _scattered(paint_sign, rng.randrange(3), (kerb, edge), (4, 22), rng)
        things += _scattered(paint_tree, rng.randrange(2), (kerb, edge), (5, 35), rng)
    things += _scattered(paint_person, rng.randrange(3), (street.left, street.right), (5, 25), rng)
    for z, paint, x, own in sorted(things + strangers, key=lambda thing: -thing[0]):
        paint(canvas, x, z, own)


def _strangers(rng: Random, street: Street, look: Look) -> list[Thing]:
    """Unknown things on the road or at its edge; sometimes none."""

    def paint(canvas: Canvas, x: float, z: float, own: Random) -> None:
        paint_stranger(canvas, x, z, STRANGER, own, look.strangers)

    count = rng.choices((0, 1, 2, 3), (0.08, 0.42, 0.3, 0.2))[0]
    return _scattered(paint, count, (street.left - 0.5, street.right + 0.5), (3.5, 16), rng)


def _photograph(canvas: Canvas, rng: Random, grain: np.random.Generator) -> np.ndarray:
    """Exposure, lens blur and sensor noise: image (h w 3) uint8."""
    height, width = canvas.labels.shape
    gain = rng.uniform(0.8, 1.2)
    red, green, blue = (gain * rng.uniform(0.93, 1.07) for _ in range(3))
    image = canvas.image * rgb((red, green, blue))
    tones = np.linspace(0, 1, 256) ** rng.uniform(0.75, 1.2) * 255
    image = tones.astype(np.uint8)[np.clip(image * 255, 0, 255).astype(np.uint8)]
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.8) * max(1.0, height / 256)))
    picture = canvas.develop(picture)
    strength = 255 * canvas.noise * rng.uniform(0.01, 0.04)
    noise = grain.standard_normal((height, width, 3), dtype=np.float32) * strength
    return np.clip(np.asarray(picture, dtype=np.float32) + noise, 0, 255).astype(np.uint8)
