"""Street scenes in natural light: shadows that things and houses cast, round bodies, smooth edges, a lens.

The first built-in scenes are painted on a plain `Canvas` and stay as they are, pixel by pixel; the larger
ones are painted on a `SunlitCanvas`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from gmmseg.data.scenes.camera import NEAR, Camera
from gmmseg.data.scenes.canvas import Canvas, Colour, Point, Sketch, Skin, Surface, side_light, smooth_noise
from gmmseg.data.scenes.palette import tone
from gmmseg.data.scenes.weather import Weather

SMOOTHING = 2
"""Sketches are drawn this many times as large, and made smaller with soft edges."""


@dataclass(frozen=True)
class Sun:
    """Where shadows fall: metres to the right (``across``) and away (``ahead``) for every metre of height.

    ``strength`` is the share of the light that a shadow takes away.
    """

    across: float
    ahead: float
    strength: float

    @classmethod
    def draw(cls, rng: Random, weather: Weather) -> "Sun":
        across = rng.choice((-1, 1)) * rng.uniform(0.35, 1.1)
        return cls(across, rng.uniform(-0.5, 0.7), min(0.6, 1.3 * weather.sun))

    @property
    def side(self) -> float:
        """-1 where the light comes from the left, 1 where it comes from the right."""
        return -math.copysign(1, self.across)

    def on_ground(self, point: Point) -> Point:
        """Where the shadow of a point falls."""
        x, y, z = point
        return x + self.across * y, 0.0, max(z + self.ahead * y, NEAR)


class SunlitSketch(Sketch):
    """A sketch with soft edges and round ellipses, and the shadow that it casts on the ground."""

    def __init__(self, camera: Camera, sun: Sun, light: tuple[float, float]) -> None:
        super().__init__(_enlarged(camera), light)
        self.sun, self.small = sun, camera
        self.shadow = Image.new("L", (camera.width, camera.height))
        self._cast = ImageDraw.Draw(self.shadow)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        super().polygon(points, colour)
        self._cast.polygon([self.small.project(*self.sun.on_ground(each)) for each in points], fill=255)

    def rectangle(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        left, right = x - width / 2, x + width / 2
        self.polygon([(left, y, z), (right, y, z), (right, y + height, z), (left, y + height, z)], colour)

    def ellipse(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        super().ellipse(x, y, z, width, height, colour)
        rim = [(x + width * across, y + height * up, z) for across, up in _RIM]
        self._cast.polygon([self.small.project(*self.sun.on_ground(each)) for each in rim], fill=255)

    def ball(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """Brighter towards the light."""
        self.ellipse(x, y, z, width, height, tone(colour, 0.76))
        for step in range(1, 6):
            size, lift = 1 - 0.14 * step, 0.04 * step
            middle = x + self.sun.side * lift * width, y + lift * height
            super().ellipse(*middle, z, size * width, size * height, tone(colour, 0.76 + 0.08 * step))

    def foliage(self, x: float, y: float, z: float, width: float, height: float, colour: Colour) -> None:
        """Tufts of leaves about a dark middle, brighter towards the light."""
        self.ellipse(x, y, z, 0.92 * width, 0.92 * height, tone(colour, 0.6))
        rng = Random(f"leaves {x} {y} {z}")
        for tuft in range(_TUFTS):
            turn, out = rng.uniform(0, math.tau), 0.5 * math.sqrt(rng.random())
            across, up = out * math.cos(turn), out * math.sin(turn)
            bright = 0.72 + 0.35 * tuft / _TUFTS + 0.45 * up + 0.35 * self.sun.side * across
            size = rng.uniform(0.1, 0.22)
            middle = x + across * width, y + up * height
            super().ellipse(*middle, z, size * width, size * height, tone(colour, bright))

    def glass(self, points: Sequence[Point], colour: Colour) -> None:
        """Mirrors the sky above, and a band of it across."""
        super().glass(points, tone(colour, 0.8))
        low_left, low_right, high_right, high_left = points

        def at(across: float, up: float) -> Point:
            lower, upper = _between(low_left, low_right, across), _between(high_left, high_right, across)
            return _between(lower, upper, up)

        for low in (0.45, 0.6, 0.75):
            super().polygon([at(0, low), at(1, low), at(1, 1), at(0, 1)], tone(colour, 0.7 + 1.1 * low))
        super().polygon([at(0.12, 0), at(0.28, 0), at(0.48, 1), at(0.32, 1)], tone(colour, 1.8))

    def line(self, start: Point, end: Point, thickness: float, colour: Colour) -> None:
        super().line(start, end, thickness, colour)
        feet = [self.small.project(*self.sun.on_ground(each)) for each in (start, end)]
        across = max(1, round(thickness * self.small.focal / max(start[2], NEAR)))
        self._cast.line(feet, fill=255, width=across)


_RIM = [(math.cos(math.tau * step / 16) / 2, math.sin(math.tau * step / 16) / 2) for step in range(16)]
_TUFTS = 40


def _between(start: Point, end: Point, share: float) -> Point:
    """The point after ``share`` of the way."""
    x, y, z = (first + share * (last - first) for first, last in zip(start, end))
    return x, y, z


def _enlarged(camera: Camera) -> Camera:
    return replace(
        camera,
        height=SMOOTHING * camera.height,
        width=SMOOTHING * camera.width,
        focal=SMOOTHING * camera.focal,
        horizon=SMOOTHING * camera.horizon,
        centre=SMOOTHING * camera.centre,
    )


class SunlitCanvas(Canvas):
    """A canvas on which things and houses cast shadows. ``shadow`` (h w): how dark the ground is, 0 to 1."""

    noise = 0.3
    sun: Sun
    shadow: np.ndarray

    def __init__(self, camera: Camera, rng: np.random.Generator, sun: Sun) -> None:
        super().__init__(camera, rng)
        object.__setattr__(self, "sun", sun)
        object.__setattr__(self, "shadow", np.zeros(self.labels.shape, np.float32))

    def fine_grain(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """Grain of a few pixels: what is as fine as a pixel is the sensor's, not the street's."""
        return 0.35 * super().fine_grain(rng, size) + 0.5 * smooth_noise(rng, size, max(2, size[0] // 3))

    def sketch(self, rng: Random) -> Sketch:
        left, right = side_light(rng)
        bright, dim = max(left, right), min(left, right)
        return SunlitSketch(self.camera, self.sun, (bright, dim) if self.sun.side < 0 else (dim, bright))

    def sunlit(self, part: Surface, sun: float, cover: float) -> np.ndarray:
        """No blots of cloud: shadows here have an origin."""
        return np.ones((1, 1), np.float32)

    def worn(self, lanes: np.ndarray, x: np.ndarray, left: float, right: float) -> np.ndarray:
        """Darker where tyres run and where dirt gathers at the kerb."""
        lane = np.minimum(np.abs(x - (left + right) / 2), 3) - np.float32(1.4)
        tracks = np.exp(-((np.abs(lane) - np.float32(0.75)) ** 2) / np.float32(0.08))
        gutter = np.exp(-np.minimum(x - left, right - x).clip(0) / np.float32(0.25))
        return lanes * (1 - np.float32(0.12) * tracks - np.float32(0.3) * gutter)

    def wall_skin(self, skin: Skin, x: float) -> Skin:
        """Houses that face the light are bright, those against it dim; all are dark at their foot."""
        facing = 1 + 0.5 * self.sun.strength * math.copysign(1, -x) * self.sun.side

        def lit(part: Surface, u: np.ndarray, v: np.ndarray, z: np.ndarray) -> np.ndarray:
            foot = 1 - np.float32(0.4) * np.exp(-v.clip(0) / np.float32(0.7))
            return skin(part, u, v, z) * (np.float32(facing) * foot)

        return lit

    def cast_wall(self, x: float, near: float, far: float, height: float) -> None:
        """Shadow where the way to the light crosses the wall, and less light close to it."""
        ground_x, ground_z = self.camera.ground()
        below = slice(int(np.argmax(self.camera.rows[:, 0] > 0)), None)
        gx, gz, shadow = ground_x[below], ground_z[below], self.shadow[below]
        high = (gx - np.float32(x)) / np.float32(self.sun.across)
        crossing = gz - high * np.float32(self.sun.ahead)
        hit = (high > 0) & (high < height) & (crossing > near) & (crossing < far)
        beside = (gz > near) & (gz < far)
        close = np.float32(0.7) * np.exp(-np.abs(gx - np.float32(x)) / np.float32(0.8)) * beside
        np.maximum(shadow, np.maximum(hit, close), out=shadow)

    def place(self, sketch: Sketch, label: int, z: float, roughness: float) -> None:
        """Paint a sketch with soft edges, darker below than above, in shadow if it stands in one."""
        assert isinstance(sketch, SunlitSketch)
        box = sketch.picture.getbbox()
        if box is None:
            return
        left, top, right, bottom = (edge // SMOOTHING for edge in (box[0], box[1], box[2] + 1, box[3] + 1))
        right, bottom = min(right, self.camera.width), min(bottom, self.camera.height)
        area = (left * SMOOTHING, top * SMOOTHING, right * SMOOTHING, bottom * SMOOTHING)
        drawn = np.asarray(sketch.picture.crop(area).reduce(SMOOTHING)).transpose(2, 0, 1) / np.float32(255)
        part = self.window(slice(top, bottom), slice(left, right))
        light = self._light_on(sketch, bottom - 1, (left + right) // 2, drawn.shape[1:])
        fine, medium, _, _ = part.grain
        texture = (1 + np.float32(roughness) * (np.float32(0.5) * fine + medium)) * light
        part.image[:] += drawn[3] * (drawn[:3] * texture - part.image)
        solid = drawn[3] >= 0.5
        part.labels[solid], part.depth[solid] = label, z
        self._add_shadow(sketch.shadow)

    def _light_on(self, sketch: Sketch, row: int, column: int, size: tuple[int, int]) -> np.ndarray:
        """Light over a thing of ``size`` (h w) whose foot is at (row, column)."""
        height, width = size
        from_left, from_right = sketch.light
        across = np.linspace(from_left, from_right, width, dtype=np.float32)
        down = np.linspace(1.12, 0.82, height, dtype=np.float32)[:, None]
        return across * down * (1 - np.float32(0.7 * self.sun.strength) * self.shadow[row, column])

    def _add_shadow(self, cast: Image.Image) -> None:
        box = cast.getbbox()
        if box is None:
            return
        left, top, right, bottom = box
        soft = cast.crop(box).filter(ImageFilter.GaussianBlur(max(0.6, self.camera.height / 300)))
        part = self.shadow[top:bottom, left:right]
        np.maximum(part, np.asarray(soft, np.float32) / np.float32(255), out=part)

    def finish(self) -> None:
        """Take light away from the ground that lies in shadow, and from nothing else."""
        _, z = self.camera.ground()
        shade = np.float32(0.15 + self.sun.strength) * self.shadow * (self.depth == z)
        self.image[:] *= np.float32(1.1) * (1 - shade)

    def develop(self, picture: Image.Image) -> Image.Image:
        """Light that spills over from bright places, and corners that are a little darker."""
        height, width = self.labels.shape
        glow = picture.reduce(4).filter(ImageFilter.GaussianBlur(height / 80)).resize((width, height))
        picture = ImageChops.screen(picture, glow.point(lambda value: max(0, value - 150) // 3))
        down = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
        across = np.linspace(-1, 1, width, dtype=np.float32)
        fall = 1 - np.float32(0.11) * (down**2 + across**2)
        return Image.fromarray((np.asarray(picture) * fall[..., None]).astype(np.uint8))
