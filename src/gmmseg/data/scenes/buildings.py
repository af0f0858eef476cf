"""What lines the street: facades of several styles, fences in front of parks, and the skyline at its end."""

import math
from random import Random

import numpy as np

from gmmseg.data.scenes.canvas import Canvas, Skin, Surface, rgb
from gmmseg.data.scenes.ground import DICE, Street, cells
from gmmseg.data.scenes.palette import (
    BRICK,
    BUILDING,
    DARK,
    FENCE,
    LEAF,
    METAL,
    PAINT,
    PLASTER,
    STONE,
    VEGETATION,
    WOOD,
    pick,
    tone,
)
from gmmseg.data.scenes.weather import Weather


class Facade:
    """One building's skin as a function of the place on it: ``u`` metres along, ``v`` metres up."""

    def __init__(self, rng: Random, weather: Weather) -> None:
        self.seed = rng.getrandbits(32)
        self.weather = weather
        self.height = rng.uniform(3.5, 18)
        self.style = ("brick", "glass", "concrete", "plaster")[rng.choices(range(4), (0.3, 0.2, 0.2, 0.3))[0]]
        palette = {"brick": BRICK, "glass": PAINT, "concrete": STONE, "plaster": PLASTER}[self.style]
        self.colour = pick(rng, palette)
        self.pitch = (rng.uniform(1.8, 3.6), rng.uniform(2.6, 3.6))
        self.opening = (rng.uniform(0.35, 0.65), rng.uniform(0.4, 0.65))
        self.shop = pick(rng, PAINT) if rng.random() < 0.4 else None

    def colours(self, part: Surface, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Colour of every pixel (3 h w), whether the building covers it or not."""
        fine, _, wide, _ = part.grain
        near = np.exp(z / np.float32(-25))
        if self.style == "glass":
            skin = rgb(tone(self.colour, 0.6))
        else:
            tile, joints = cells(
                Random(self.seed), u, v, (0.5, 0.18) if self.style == "brick" else (2.4, 1.2), 0.04
            )
            strength = 0.25 if self.style == "brick" else 0.05
            skin = (1 + near * np.float32(strength) * (np.float32(0.5) * tile - joints)) * rgb(self.colour)
        skin = np.where(self._panes(u, v), self._window(u, v), skin)
        if self.shop is not None:
            skin = np.where(v < 3.0, self._shop(u, v), skin)
        return skin * (1 + 0.04 * fine + 0.07 * wide)

    def _panes(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        column, row = u / np.float32(self.pitch[0]), v / np.float32(self.pitch[1])
        across, up = column - np.floor(column), row - np.floor(row)
        if self.style == "concrete":
            return np.broadcast_to((up > 0.35) & (up < 0.35 + self.opening[1]), u.shape) & (across > 0.06)
        if self.style == "glass":
            return (across > 0.08) & (up > 0.08)
        return (np.abs(across - 0.5) < self.opening[0] / 2) & (np.abs(up - 0.55) < self.opening[1] / 2)

    def _window(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Panes mirror the sky more or less; some are lit from inside."""
        start = Random(self.seed).randrange(len(DICE) - 128)
        chance = 0.5 + 0.5 * DICE[start : start + 128]
        mirror = rgb(self.weather.haze)[..., 0] / np.maximum(rgb(self.weather.light)[..., 0], 0.3)
        share = (0.75 if self.style == "glass" else 0.3) * (0.5 + 0.5 * chance)
        pane = rgb(DARK)[..., 0] * (1 - share) + mirror * share
        lit = rgb((1.3, 1.05, 0.65))[..., 0] / (self.weather.light[1] + 0.3)
        table = np.where(chance > 1 - self.weather.lamps, lit, pane)
        column, row = np.floor(u / np.float32(self.pitch[0])), np.floor(v / np.float32(self.pitch[1]))
        return np.take(table, (column * 17 + row * 31).astype(np.int32) & 127, axis=1)

    def _shop(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        bay = u / np.float32(2.5)
        glass = ((bay - np.floor(bay)) > 0.12) & (v < 2.2) & (v > 0.4)
        return np.where(glass, rgb((0.16, 0.17, 0.18)), rgb(self.shop or DARK))


class DetailedFacade(Facade):
    """With frames round the panes, their glass set back and mirroring more above, bands and a cornice."""

    def colours(self, part: Surface, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
        skin = super().colours(part, u, v, z)
        column, row = u / np.float32(self.pitch[0]), v / np.float32(self.pitch[1])
        across, up = column - np.floor(column), row - np.floor(row)
        shop = 3.0 if self.shop is not None else 0.0
        wall = v >= shop
        panes = self._panes(u, v) & wall
        relief = np.where(panes, np.float32(0.75) + np.float32(0.5) * up, np.float32(1))
        if self.style in ("brick", "plaster"):
            wide, tall = self.opening[0] / 2, self.opening[1] / 2
            beside, above = np.abs(across - 0.5), up - np.float32(0.55)
            relief = np.where(panes & (above > tall - 0.06), np.float32(0.45), relief)
            bars = panes & ((beside < 0.02) | (np.abs(above - 0.06) < 0.015))
            frame = ~panes & wall & (beside < wide + 0.035) & (np.abs(above) < tall + 0.03)
            skin = np.where(bars | frame, rgb(tone(self.frame, 1.0)), skin)
            sill = wall & (beside < wide + 0.06) & (above < -tall - 0.03) & (above > -tall - 0.08)
            relief = np.where(sill, np.float32(0.6), relief)
        top = v > self.height - 0.45
        relief = np.where(top, np.where(v < self.height - 0.38, 0.6, 1.12), relief)
        return skin * relief

    @property
    def frame(self) -> tuple[float, float, float]:
        return tone((0.85, 0.83, 0.78), 0.6 + 0.5 * (self.seed % 64) / 64)


def paint_skyline(canvas: Canvas, street: Street, weather: Weather, rng: Random) -> None:
    """The far end of the street: blocks and tree tops against the sky."""
    z = street.length * 1.1
    x, y = canvas.camera.front(z)
    _, medium, wide, _ = canvas.grain
    blocks = [rng.uniform(0, 22) if rng.random() < 0.7 else 0.0 for _ in range(64)]
    top = np.array(blocks, np.float32)[np.floor(x / np.float32(rng.uniform(5, 12))).astype(np.int64) & 63]
    colours = rgb(pick(rng, STONE + BRICK)) * (1 + 0.1 * medium)
    canvas.fill((y > 0) & (y < top), colours, BUILDING, z)
    trees = np.float32(rng.uniform(0, 9)) + 4 * wide + 2 * medium
    leaves = rgb(pick(rng, LEAF[:6])) * (1 + 0.3 * medium)
    canvas.fill((y > 0) & (y < trees), leaves, VEGETATION, z)


def paint_building(
    canvas: Canvas,
    facade: Facade,
    x: float,
    near: float,
    far: float,
    rng: Random,
    *,
    end_wall: bool,
) -> None:
    """One building whose street side stands at ``x`` from ``near`` to ``far``; its end wall first, if it
    shows."""
    if end_wall:
        _paint_end(canvas, facade, x, near, rng)
    _paint_along(canvas, x, near, far, facade.height, BUILDING, canvas.wall_skin(facade.colours, x))
    canvas.cast_wall(x, near, far, facade.height)


def _paint_end(canvas: Canvas, facade: Facade, x: float, near: float, rng: Random) -> None:
    depth = math.copysign(rng.uniform(6, 15), x)
    across, up = canvas.camera.front(near)
    low, high = sorted((x, x + depth))
    window = _extent((up > 0) & (up < facade.height), (across > low) & (across < high))
    if window is not None:
        rows, columns = window
        end = canvas.window(rows, columns)
        u, v = np.broadcast_arrays(across[:, columns], up[rows])
        colours = np.float32(0.8) * facade.colours(end, u, v, np.full((1, 1), near, np.float32))
        end.fill(np.ones(u.shape, bool), colours, BUILDING, near)


def _extent(rows: np.ndarray, columns: np.ndarray) -> tuple[slice, slice] | None:
    """The smallest window holding all marked rows and columns, or None when there is none."""
    down, across = np.flatnonzero(rows), np.flatnonzero(columns)
    if not len(down) or not len(across):
        return None
    return slice(int(down[0]), int(down[-1]) + 1), slice(int(across[0]), int(across[-1]) + 1)


def _paint_along(
    canvas: Canvas, x: float, near: float, far: float, height: float, label: int, skin: Skin
) -> None:
    """Paint the upright plane along the street at ``x``; ``skin`` gives colours from (part, u, v, z)."""
    z, v = canvas.camera.wall(x)
    ahead = (z > near) & (z < far)
    window = _extent(np.any((v > 0) & (v < height) & ahead, axis=1), ahead)
    if window is None:
        return
    rows, columns = window
    part, v, z = canvas.window(rows, columns), v[window], z[:, columns]
    colours = skin(part, np.broadcast_to(z, v.shape), v, z)
    part.fill((v > 0) & (v < height), colours, label, z)


def paint_fence(canvas: Canvas, x: float, near: float, far: float, rng: Random) -> None:
    """A railing, planks or a low wall along ``x``; the label covers a railing's gaps too."""
    height, kind = rng.uniform(0.8, 2.0), rng.randrange(3)
    pitch = np.float32((rng.uniform(0.2, 0.4), rng.uniform(0.15, 0.3), 1.0)[kind])
    colour = rgb(pick(rng, (METAL, WOOD + PAINT[:1], STONE + BRICK)[kind]))

    def skin(part: Surface, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
        fine, _, wide, _ = part.grain
        colours = colour * (1 + 0.06 * fine + 0.1 * wide)
        phase = u / pitch - np.floor(u / pitch)
        if kind == 0:
            bars = (phase < 0.35) | (np.abs(v - height) < 0.12) | (np.abs(v - 0.2) < 0.08)
            return np.where(bars, colours, part.image)
        if kind == 1:
            return colours * np.where(phase < 0.15, np.float32(0.6), np.float32(1))
        return colours

    _paint_along(canvas, x, near, far, height, FENCE, skin)
