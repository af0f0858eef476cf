"""What a scene is painted on: colour, label and depth of every pixel, far things first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from gmmseg.data.scenes.camera import NEAR, Camera

Colour = tuple[float, float, float]
Point = tuple[float, float, float]


def rgb(colour: Colour) -> np.ndarray:
    """A colour ready to be multiplied with fields (h w): (3 1 1). Channels come first because it is
    faster."""
    return np.array(colour, dtype=np.float32)[:, None, None]


def smooth_noise(rng: np.random.Generator, size: tuple[int, int], cells: int) -> np.ndarray:
    """A random field (h w) in about [-1, 1] whose spots are about 1/``cells`` of the height across."""
    height, width = size
    grid = rng.uniform(0, 255, (cells + 1, max(2, round(cells * width / height)) + 1)).astype(np.uint8)
    field = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(field, dtype=np.float32) / 127.5 - 1


@dataclass(frozen=True)
class Surface:
    """Pixels to paint on: ``image`` (3 h w) float32, ``labels`` (h w) uint8, ``depth`` (h w) float32 metres.

    ``grain`` holds random fields (h w) of four sizes, finest first, shared by everything in the scene: no
    material can be told by its noise alone.
    """

    image: np.ndarray
    labels: np.ndarray
    depth: np.ndarray
    grain: tuple[np.ndarray, ...]

    def window(self, rows: slice, columns: slice) -> "Surface":
        """A part of the surface; painting it paints the whole."""
        at = (rows, columns)
        return Surface(
            self.image[:, rows, columns],
            self.labels[at],
            self.depth[at],
            tuple(field[at] for field in self.grain),
        )

    def fill(self, mask: np.ndarray, colours: np.ndarray, label: int, depth: np.ndarray | float) -> None:
        """Paint ``colours`` (broadcastable to (3 h w)) with one label where ``mask`` (h w) holds."""
        np.copyto(self.image, colours, where=mask)
        np.copyto(self.depth, depth, where=mask)
        self.labels[mask] = label


Skin = Callable[[Surface, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Colours (3 h w) of a wall from (part of the canvas, metres along, metres up, distance)."""


def side_light(rng: Random) -> tuple[float, float]:
    """How bright a thing is at its left and at its right."""
    lit = rng.uniform(0, 0.2)
    return (1 + lit, 1 - lit) if rng.random() < 0.5 else (1 - lit, 1 + lit)


class Canvas(Surface):
    """The whole picture, and the camera that sees it."""

    camera: Camera
    noise = 1.0
    """How strong the noise of the sensor is."""

    def __init__(self, camera: Camera, rng: np.random.Generator) -> None:
        size = (camera.height, camera.width)
        grain = (self.fine_grain(rng, size), *(smooth_noise(rng, size, cells) for cells in (40, 16, 5)))
        super().__init__(
            np.zeros((3, *size), np.float32), np.zeros(size, np.uint8), np.full(size, 1000, np.float32), grain
        )
        object.__setattr__(self, "camera", camera)

    def fine_grain(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """The finest of the random fields (h w): another number at every pixel."""
        return rng.standard_normal(size, dtype=np.float32).clip(-2.5, 2.5)

    def sketch(self, rng: Random) -> "Sketch":
        """An empty sketch lit from one side."""
        return Sketch(self.camera, side_light(rng))

    def sunlit(self, part: Surface, sun: float, cover: float) -> np.ndarray:
        """How bright the ground of ``part`` is (h w) where clouds pass; ``sun``: what a shadow takes away."""
        _, _, wide, widest = part.grain
        return 1 - np.float32(sun) * (widest + 0.4 * wide > cover)

    def worn(self, lanes: np.ndarray, x: np.ndarray, left: float, right: float) -> np.ndarray:
        """Colours (3 h w) of a road from ``left`` to ``right`` after years of traffic: here, as new."""
        return lanes

    def wall_skin(self, skin: "Skin", x: float) -> "Skin":
        """What a wall along the street at ``x`` looks like in this light: here, the same on either side."""
        return skin

    def cast_wall(self, x: float, near: float, far: float, height: float) -> None:
        """The shadow of a wall at ``x`` along the street: here, none."""

    def finish(self) -> None:
        """To be called when everything is painted, before light and haze."""

    def develop(self, picture: Image.Image) -> Image.Image:
        """What a lens and a film add to the picture beside blur and noise: here, nothing."""
        return picture

    def shade(self, x: float, z: float, radius: float) -> None:
        """Darken the ground under something that stands at (x, z)."""
        column, row = self.camera.project(x, 0, z)
        across = radius * self.camera.focal / z
        along = max(1.0, across * 0.25)
        top, bottom = max(0, int(row - along)), min(self.camera.height, int(row + along) + 1)
        left, right = max(0, int(column - across)), min(self.camera.width, int(column + across) + 1)
        if top >= bottom or left >= right:
            return
        rows = (np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(row)) / np.float32(along)
        columns = (np.arange(left, right, dtype=np.float32) - np.float32(column)) / np.float32(across)
        inside = np.maximum(0, 1 - rows * rows - columns * columns)
        self.image[:, top:bottom, left:right] *= 1 - np.float32(0.6) * np.sqrt(inside)

    def place(self, sketch: "Sketch", label: int, z: float, roughness: float) -> None:
        """Paint a sketch standing at distance ``z``."""
        box = sketch.picture.getbbox()
        if box is None:
            return
        left, top, right, bottom = box
        part = self.window(slice(top, bottom), slice(left, right))
        drawn = np.asarray(sketch.picture.crop(box)).transpose(2, 0, 1)
        fine, medium, _, _ = part.grain
        from_left, from_right = sketch.light
        slope = (from_right - from_left) / (right - left)
        side_light = (from_left + slope * np.arange(right - left)).astype(np.float32) / np.float32(255)
        texture = (1 + np.float32(roughness) * (np.float32(0.5) * fine + medium)) * side_light
        part.fill(drawn[3] > 0, drawn[:3] * texture, label, z)


class Sketch:
    """Shapes given in metres, drawn as the camera sees them; placed on the canvas as one thing."""

    def __init__(self, camera: Camera, light: tuple[float, float] = (1.0, 1.0)) -> None:
        self.camera = camera
        self.light = light
        self.picture = Image.new("RGBA", (camera.width, camera.height))
        self._draw = ImageDraw.Draw(self.picture)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon through world points."""
        self._draw.polygon([self.camera.project(*point) for point in points], fill=_ink(colour))

    def rectangle(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """An upright rectangle facing the camera, standing on height ``y``, centred on ``x``."""
        left, top = self.camera.project(x - width / 2, y + height, z)
        right, bottom = self.camera.project(x + width / 2, y, z)
        self._draw.rectangle((left, top, right, bottom), fill=_ink(colour))

    def ellipse(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """An ellipse facing the camera, centred on (x, y)."""
        left, top = self.camera.project(x - width / 2, y + height / 2, z)
        right, bottom = self.camera.project(x + width / 2, y - height / 2, z)
        self._draw.ellipse((left, top, right, bottom), fill=_ink(colour))

    def ball(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """A round body, centred on (x, y): here, as flat as a disc."""
        self.ellipse(x, y, z, width, height, colour)

    def foliage(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """A clump of leaves, centred on (x, y): here, as smooth as a disc."""
        self.ellipse(x, y, z, width, height, colour)

    def glass(self, points: Sequence[Point], colour: Colour) -> None:
        """A window, its lower edge first: here, of one colour."""
        self.polygon(points, colour)

    def line(self, start: Point, end: Point, thickness: float, colour: Colour) -> None:
        """A straight bar ``thickness`` metres wide, one pixel at least."""
        pixels = [self.camera.project(*start), self.camera.project(*end)]
        across = max(1, round(thickness * self.camera.focal / max(start[2], NEAR)))
        self._draw.line(pixels, fill=_ink(colour), width=across)


def _ink(colour: Colour) -> tuple[int, int, int, int]:
    red, green, blue = colour
    return _byte(red), _byte(green), _byte(blue), 255


def _byte(channel: float) -> int:
    return min(255, max(0, int(255 * channel)))
