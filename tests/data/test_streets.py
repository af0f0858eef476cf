"""The larger scenes in natural light: the same streets, with shadows where and only where they fall."""

from random import Random

import numpy as np
import pytest
import torch

from gmmseg.data import Scenes, ScenesAnomaly, Streets, StreetsAnomaly, open_dataset
from gmmseg.data.scenes.camera import Camera
from gmmseg.data.scenes.palette import ROAD
from gmmseg.data.scenes.scenery import PLAIN, SUNLIT, draw_scene
from gmmseg.data.scenes.strangers import FIRST_KINDS, MORE_KINDS
from gmmseg.data.scenes.sunlight import Sun, SunlitCanvas
from gmmseg.labels import IGNORE

CAMERA = Camera(height=60, width=100, focal=60.0, horizon=25.0, centre=50.0, eye=1.6)


def canvas(sun: Sun) -> SunlitCanvas:
    """An empty road as far as the camera sees, of one brightness."""
    empty = SunlitCanvas(CAMERA, np.random.default_rng(0), sun)
    _, z = CAMERA.ground()
    empty.fill(np.broadcast_to(CAMERA.rows > 0, (60, 100)), np.full((3, 1, 1), 0.5), ROAD, z)
    return empty


def test_streets_are_those_of_the_scenes_in_another_light() -> None:
    for index in range(3):
        plain, lit = (
            draw_scene((0, 2, index), (96, 160), strangers=False, look=each) for each in (PLAIN, SUNLIT)
        )
        assert (plain[1] == lit[1]).mean() > 0.95
        assert not np.array_equal(plain[0], lit[0])


@pytest.mark.parametrize("kind", [Streets, StreetsAnomaly])
def test_a_street_depends_on_seed_split_and_index_alone(kind: type) -> None:
    once, again = kind("val", size=(48, 80), seed=3)[2], kind("val", size=(48, 80), seed=3, length=3)[2]
    assert torch.equal(once.image, again.image)
    assert torch.equal(once.labels, again.labels)
    assert not torch.equal(once.image, kind("val", size=(48, 80), seed=4)[2].image)


@pytest.mark.parametrize("size", [(16, 16), (33, 57), (200, 64)])
def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    for dataset in (Streets("train", size=size), StreetsAnomaly(size=size)):
        sample = dataset[1]
        assert sample.image.shape == (3, *size)
        assert sample.labels.shape == size
        assert set(sample.labels.unique().tolist()) <= {*range(10), IGNORE}


def test_names_sizes_and_lengths_are_their_own() -> None:
    dataset = open_dataset("streets_anomaly", None)
    assert isinstance(dataset, StreetsAnomaly)
    assert (dataset.split, dataset.size, len(dataset)) == ("val", (240, 400), 40)
    assert open_dataset("streets", None, "train").name == "streets"
    for small in (Scenes("test"), ScenesAnomaly("test")):
        assert small.size == (96, 160)
        assert small.look is PLAIN


def test_a_shadow_falls_away_from_the_light() -> None:
    """A post on an empty road: the ground on the far side of the light is darker, the other as it was."""
    for across, side in ((1.0, 1), (-1.0, -1)):
        plane = canvas(Sun(across, 0.0, 0.5))
        post = plane.sketch(Random(0))
        post.rectangle(0, 0, 8, 0.4, 2, (0.5, 0.5, 0.5))
        plane.place(post, 4, 8, 0.0)
        plane.finish()
        column, row = CAMERA.project(side * 1.0, 0, 8)
        opposite, _ = CAMERA.project(-side * 1.0, 0, 8)
        shaded, open_road = (
            plane.image[0, round(row), round(column)],
            plane.image[0, round(row), round(opposite)],
        )
        assert shaded < 0.7 * open_road


def test_a_house_shades_the_street_only_on_the_side_away_from_the_light() -> None:
    for across, darker in ((1.0, True), (-1.0, False)):
        plane = canvas(Sun(across, 0.0, 0.5))
        before = plane.image.copy()
        plane.cast_wall(-4.0, 2.0, 30.0, height=6.0)
        plane.finish()
        column, row = CAMERA.project(-1.0, 0, 8)
        ratio = plane.image[0, round(row), round(column)] / before[0, round(row), round(column)]
        assert bool(ratio < 0.6) is darker
        assert np.array_equal(plane.image[:, :20], before[:, :20] * np.float32(1.1)), (
            "nothing above the ground"
        )


def test_there_are_more_kinds_of_unknown_things_and_each_can_be_seen() -> None:
    assert set(FIRST_KINDS) < set(MORE_KINDS)
    for kind in MORE_KINDS:
        plane = canvas(Sun(0.5, 0.0, 0.5))
        drawing = plane.sketch(Random(1))
        plane.place(drawing, 99, 6.0, kind(drawing, 0.0, 6.0, 1.2, Random(1)))
        assert 30 < (plane.labels == 99).sum() < 1500, kind.__name__
