"""Road, pavement and grass: the ground plane, seen from the camera."""

from dataclasses import dataclass
from random import Random

import numpy as np

from gmmseg.data.scenes.canvas import Canvas, Colour, Surface, rgb
from gmmseg.data.scenes.palette import BRICK, LEAF, PAVEMENT, ROAD, STONE, VEGETATION, WHITE, pick, tone
from gmmseg.data.scenes.weather import Weather

DICE = np.random.default_rng(0).uniform(-1, 1, 4096).astype(np.float32)
"""Random numbers to cut tables from: faster than drawing new ones for every wall."""


@dataclass(frozen=True)
class Street:
    """Edges in metres: road from ``left`` to ``right``, pavements ``left_walk`` and ``right_walk`` wide
    beside it."""

    left: float
    right: float
    left_walk: float
    right_walk: float
    length: float

    @classmethod
    def draw(cls, rng: Random) -> "Street":
        return cls(
            left=-rng.uniform(1.8, 6.5),
            right=rng.uniform(1.8, 5.0),
            left_walk=rng.uniform(1.2, 4.0),
            right_walk=rng.uniform(1.2, 4.0),
            length=rng.uniform(30, 75),
        )

    def kerb(self, side: int) -> float:
        return self.left if side < 0 else self.right

    def edge(self, side: int) -> float:
        """Where the pavement ends and lots begin."""
        return self.left - self.left_walk if side < 0 else self.right + self.right_walk


def cells(
    rng: Random, u: np.ndarray, v: np.ndarray, size: tuple[float, float], joint: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tiling of a plane in metres: one random number in [-1, 1] per tile (h w), and where the joints are."""
    column, row = u / np.float32(size[0]), v / np.float32(size[1])
    column = column + 0.5 * (np.floor(row) % 2)
    start = rng.randrange(len(DICE) - 256)
    index = (np.floor(column) * 37 + np.floor(row) * 101).astype(np.int32) & 255
    joints = (column - np.floor(column) < joint / size[0]) | (row - np.floor(row) < joint / size[1])
    return DICE[start : start + 256][index], joints


def asphalt(rng: Random, part: Surface, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Tarmac from fresh black to worn grey, with patches of another age."""
    fine, medium, wide, _ = part.grain
    grey = np.float32(rng.uniform(0.20, 0.50))
    shade = grey * (1 + 0.10 * fine + 0.06 * medium + 0.10 * wide)
    for _ in range(rng.randrange(0, 3)):
        left, near = rng.uniform(-4, 3), rng.uniform(3, 20)
        width, depth = rng.uniform(0.5, 2.5), rng.uniform(1, 5)
        inside = (x > left) & (x < left + width) & (z > near) & (z < near + depth)
        shade = np.where(inside, shade * np.float32(rng.uniform(0.7, 1.25)), shade)
    return shade * rgb((1.0, rng.uniform(0.98, 1.02), rng.uniform(0.96, 1.06)))


def tiled(
    rng: Random,
    part: Surface,
    x: np.ndarray,
    z: np.ndarray,
    colour: Colour,
    size: tuple[float, float],
) -> np.ndarray:
    """Cobbles, slabs or paving bricks; joints fade where they are finer than a pixel."""
    tile, joints = cells(rng, x, z, size, 0.12 * min(size))
    near = np.exp(-z / np.float32(12 * min(size) + 4))
    fine, _, wide, _ = part.grain
    shade = 1 + near * (0.14 * tile - np.float32(0.30) * joints) + 0.06 * fine + 0.08 * wide
    return shade * rgb(colour)


def surface(rng: Random, part: Surface, x: np.ndarray, z: np.ndarray, odds: tuple[float, ...]) -> np.ndarray:
    """A random paved surface (3 h w): asphalt, cobbles, slabs or bricks with the given odds."""
    kind = rng.choices(range(4), odds)[0]
    if kind == 0:
        return asphalt(rng, part, x, z)
    colour = pick(rng, BRICK if kind == 3 else STONE)
    size = ((0.25, 0.25), (0.25, 0.25), (0.8, 0.8), (0.4, 0.2))[kind]
    return tiled(rng, part, x, z, tone(colour, 0.75 if kind == 1 else 1.0), size)


def markings(rng: Random, street: Street, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Where the road is painted (h w): lane lines and sometimes a zebra crossing."""
    painted = np.zeros(x.shape, bool)
    dash, gap = rng.uniform(1.5, 4), rng.uniform(1.5, 5)
    dashes = (z + rng.uniform(0, 5)) % (dash + gap) < dash
    if rng.random() < 0.7:
        middle = (street.left + street.right) / 2 + rng.gauss(0, 0.3)
        painted |= (np.abs(x - middle) < 0.08) & dashes
    if rng.random() < 0.3:
        painted |= (np.abs(x - street.left - 0.4) < 0.07) | (np.abs(x - street.right + 0.4) < 0.07)
    if rng.random() < 0.3:
        start = rng.uniform(4, 15)
        painted |= (z > start) & (z < start + 3) & ((x - street.left) % 1.0 < 0.5)
    return painted


def paint_ground(canvas: Canvas, street: Street, weather: Weather, rng: Random) -> None:
    """Grass to the sides, pavements with a kerb, and the road, below the horizon."""
    below = slice(int(np.argmax(canvas.camera.rows[:, 0] > 0)), canvas.camera.height)
    x, z = (field[below] for field in canvas.camera.ground())
    part = canvas.window(below, slice(None))
    fine, medium, _, _ = part.grain
    shadow = canvas.sunlit(part, weather.sun, rng.uniform(0.1, 0.9))

    grass = rgb(pick(rng, LEAF[:4])) * ((1 + 0.25 * fine + 0.15 * medium) * shadow)
    part.fill(np.ones(x.shape, bool), grass, VEGETATION, z)

    slabs = surface(rng, part, x, z, (0.25, 0.10, 0.40, 0.25))
    kerb = (np.abs(x - street.left + 0.08) < 0.08) | (np.abs(x - street.right - 0.08) < 0.08)
    slabs = np.where(kerb, rgb(pick(rng, STONE)) * np.float32(1.15), slabs)
    part.fill((x > street.edge(-1)) & (x < street.edge(1)), slabs * shadow, PAVEMENT, z)

    lanes = surface(rng, part, x, z, (0.65, 0.20, 0.08, 0.07))
    lanes = canvas.worn(lanes, x, street.left, street.right)
    worn = np.where(markings(rng, street, x, z), 0.75 + 0.2 * medium, np.float32(0))
    lanes = lanes + worn * (rgb(WHITE) - lanes)
    if rng.random() < 0.25:
        lanes = _wet(lanes, part, weather)
    part.fill((x > street.left) & (x < street.right), lanes * shadow, ROAD, z)


def _wet(colours: np.ndarray, part: Surface, weather: Weather) -> np.ndarray:
    """Darker where rain has soaked in, mirroring the sky where it stands."""
    _, _, wide, widest = part.grain
    puddle = (widest + 0.4 * wide).clip(0, 0.45)
    return 0.7 * colours * (1 - puddle) + rgb(weather.haze) * puddle
