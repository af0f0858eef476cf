"""Light and air: what the same street looks like on another day."""

from dataclasses import dataclass
from random import Random

import numpy as np

from gmmseg.data.scenes.canvas import Canvas, Colour, rgb
from gmmseg.data.scenes.palette import SKY


@dataclass(frozen=True)
class Weather:
    """``zenith``, ``haze`` (sky at the horizon) and ``cloud`` colours; ``light`` multiplies every surface.

    ``cover`` is the share of clouds, ``clearness`` the metres after which haze has swallowed 63 %,
    ``sun`` the strength of shadows, ``lamps`` the share of windows lit.
    """

    zenith: Colour
    haze: Colour
    cloud: Colour
    light: Colour
    cover: float
    clearness: float
    sun: float
    lamps: float


CLEAR = Weather(
    (0.28, 0.48, 0.82), (0.72, 0.82, 0.92), (0.95, 0.95, 0.96), (1.10, 1.06, 0.98), 0.25, 500, 0.45, 0.0
)
CLOUDY = Weather(
    (0.45, 0.58, 0.75), (0.78, 0.82, 0.86), (0.85, 0.86, 0.88), (0.95, 0.95, 0.95), 0.65, 300, 0.2, 0.05
)
OVERCAST = Weather(
    (0.66, 0.68, 0.70), (0.76, 0.77, 0.78), (0.60, 0.61, 0.63), (0.80, 0.82, 0.84), 0.5, 150, 0.0, 0.2
)
DUSK = Weather(
    (0.30, 0.26, 0.42), (0.90, 0.55, 0.34), (0.55, 0.36, 0.40), (0.85, 0.70, 0.60), 0.45, 260, 0.1, 0.5
)
NIGHT = Weather(
    (0.05, 0.06, 0.12), (0.20, 0.17, 0.18), (0.14, 0.13, 0.17), (0.52, 0.48, 0.50), 0.4, 220, 0.0, 0.6
)
KINDS = (CLEAR, CLOUDY, OVERCAST, DUSK, NIGHT)
ODDS = (0.30, 0.25, 0.20, 0.15, 0.10)


def draw_weather(rng: Random) -> Weather:
    """One of the five kinds of weather."""
    return rng.choices(KINDS, ODDS)[0]


def paint_sky(canvas: Canvas, weather: Weather, rng: Random) -> None:
    """Fill the whole canvas with sky: a gradient to the horizon, and clouds."""
    height = canvas.camera.height
    fall = np.linspace(0, height / max(canvas.camera.horizon, 1), height, dtype=np.float32).clip(0, 1)[
        :, None
    ]
    colours = (1 - fall) * rgb(weather.zenith) + fall * rgb(weather.haze)
    _, medium, wide, widest = canvas.grain
    shape = widest + 0.5 * wide + 0.2 * medium
    softness = np.float32(rng.uniform(0.2, 0.8))
    clouds = (
        ((shape - np.float32(np.quantile(shape[::4, ::4], 1 - weather.cover))) / softness)
        .clip(0, 1)
        .astype(np.float32)
    )
    colours = colours + clouds * (rgb(weather.cloud) * (1 + np.float32(0.08) * wide) - colours)
    canvas.fill(np.ones(canvas.labels.shape, bool), colours, SKY, 1000.0)


def light_up(canvas: Canvas, weather: Weather, rng: Random) -> None:
    """Multiply surfaces by the light, then veil them with haze by their distance; the sky has its own
    light."""
    surface = canvas.labels != SKY
    gain = rgb(weather.light) * np.float32(rng.uniform(0.85, 1.15))
    clearness = weather.clearness * rng.uniform(0.4, 1.2)
    seen = np.exp(canvas.depth * np.float32(-1 / clearness))
    lit = canvas.image * gain * seen + rgb(weather.haze) * (1 - seen)
    np.copyto(canvas.image, lit, where=surface)
