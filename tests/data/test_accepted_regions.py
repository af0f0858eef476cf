"""Accepted objects of a prediction as masks of a class: the pixels that `objects.json` was made of."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from gmmseg.data.accepted_regions import AcceptedRegions
from gmmseg.data.reading import DataError
from gmmseg.inference.coco_objects import ImageObjects, annotation, coco_tree
from gmmseg.inference.image_maps import Meaning
from gmmseg.inference.objects import unknown_objects
from gmmseg.inference.prediction import Prediction
from gmmseg.labels import IGNORE


@pytest.fixture
def world(tmp_path, calibration_of):
    """Two images and an objects.json with two objects of the first and one, at its edges, of the second."""
    anomaly = torch.zeros(2, 5, 9)
    anomaly[0, 1:3, 1:4], anomaly[0, 3:, 6:] = 9.0, 8.0
    anomaly[1, :, 8], anomaly[1, 0, :] = 7.0, 7.0
    images = []
    for index, scores in enumerate(anomaly):
        Image.fromarray(np.full((5, 9, 3), 40, np.uint8)).save(tmp_path / f"{index}.png")
        prediction = Prediction(torch.zeros(5, 9), torch.ones(1, 5, 9), scores, Meaning(calibration_of(5.0)))
        found = unknown_objects(prediction, min_area=1)
        images.append(
            ImageObjects(f"{index}.png", (5, 9), tuple(annotation(each, (5, 9), None) for each in found))
        )
    (tmp_path / "objects.json").write_text(json.dumps(coco_tree(images)))
    return tmp_path, anomaly


@pytest.fixture
def calibration_of():
    from gmmseg.models.calibration_file import PIXELS, Calibration, Threshold

    return lambda threshold: Calibration("w", {PIXELS: Threshold(threshold, 0.05)}, 1.0, None, None, None)


def opened(world, *accepted):
    return AcceptedRegions(world[0], world[0] / "objects.json", accepted)


def test_labels_are_the_pixels_of_the_objects(world):
    dataset = opened(world, 3, 1)
    assert [sample.name for sample in dataset] == ["0.png", "1.png"]
    first = torch.zeros(5, 9, dtype=torch.uint8)
    first[world[1][0] == 9], first[world[1][0] == 8] = 1, IGNORE  # the other may be of the class, too
    assert torch.equal(dataset[0].labels, first)
    assert torch.equal(dataset[1].labels, (world[1][1] == 7).byte())
    assert [sample.name for sample in opened(world, 2)] == ["0.png"]


@pytest.mark.parametrize(
    ("accepted", "message"), [((4, 1), "no object 4; they are 1 to 3"), ((), "--accept")]
)
def test_objects_that_are_not_there_are_refused(world, accepted, message):
    with pytest.raises(DataError, match=message):
        opened(world, *accepted)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"images": [], "annotations": [{}]}', "\x00", '{"images": [{"id": Infinity}]}']
)
def test_another_file_is_refused_with_its_cure(world, content):
    (world[0] / "objects.json").write_text(content)
    with pytest.raises(DataError, match=r"objects\.json: .*gmmseg predict --objects"):
        opened(world, 1)


@pytest.mark.parametrize(
    "counts", [[1], [-3, 48], "abc", None, [[1]], [10**18], [45, 2**63 - 1, 2**63 - 1, 2], [math.inf]]
)
def test_damaged_pixels_are_refused(world, counts):
    path = world[0] / "objects.json"
    tree = json.loads(path.read_text())
    tree["annotations"][0]["segmentation"]["counts"] = counts
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError, match="object 1 are damaged"):
        opened(world, 1)[0]


def test_regions_of_one_image_that_differ_in_size_are_refused(world):
    path = world[0] / "objects.json"
    tree = json.loads(path.read_text())
    tree["annotations"][0]["segmentation"] = {"size": [9, 5], "counts": [40, 5]}
    path.write_text(json.dumps(tree))
    with pytest.raises(DataError, match="object 1 are damaged"):
        opened(world, 1)[0]


def test_images_that_are_gone_or_changed_are_named(world):
    Image.fromarray(np.zeros((4, 9, 3), np.uint8)).save(world[0] / "0.png")
    with pytest.raises(DataError, match=r"0\.png is 9x4 and was 9x5"):
        opened(world, 1)[0]
    (world[0] / "0.png").unlink()
    with pytest.raises(DataError, match=r"0\.png is no image of .* folder that was predicted"):
        opened(world, 1)
