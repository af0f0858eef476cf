"""objects.json and pictures with boxes: what is written is what was found."""

import json

import numpy as np
import pytest
from PIL import Image

from gmmseg.inference import ObjectFiles, Predictor, predict_files, unknown_objects


def decoded(segmentation):
    """The mask of COCO's uncompressed run lengths, as their definition says: column by column."""
    height, width = segmentation["size"]
    flat = [index % 2 for index, count in enumerate(segmentation["counts"]) for _ in range(count)]
    assert len(flat) <= height * width
    flat += [0] * (height * width - len(flat))
    return np.array(flat, bool).reshape(width, height).T


@pytest.fixture
def noise(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / "a.png")
    Image.fromarray(pixels[:, ::-1].copy()).save(root / "b.png")
    (root / "broken.png").write_bytes(b"nothing")
    return root


def test_the_file_holds_what_was_found_and_broken_images_lose_nothing(segmenter, promised, noise, tmp_path):
    segmenter.calibration = promised(6.0)
    predictor, out = Predictor(segmenter), tmp_path / "out"
    names = ("red", "green", "blue")
    summary = predict_files(predictor, [noise], out, objects=ObjectFiles(names, min_area=2))
    assert [name for name, _ in summary.failed] == ["broken.png"]
    tree = json.loads((out / "objects.json").read_text())
    assert [(each["id"], each["file_name"], each["width"]) for each in tree["images"]] == [
        (1, "a.png", 20),
        (2, "b.png", 20),
    ]
    assert [each["id"] for each in tree["annotations"]] == list(range(1, 1 + len(tree["annotations"])))
    assert tree["categories"][0]["id"] == 1
    for image in tree["images"]:
        found = unknown_objects(predictor.predict(noise / image["file_name"]), min_area=2)
        written = [each for each in tree["annotations"] if each["image_id"] == image["id"]]
        assert len(found) == len(written) > 1
        for one, other in zip(found, written):
            left, top, width, height = other["bbox"]
            mask = decoded(other["segmentation"])
            assert np.array_equal(mask[top : top + height, left : left + width], one.mask)
            assert mask.sum() == one.area == other["area"]
            assert (other["peak_score"], other["p_value"]) == (one.peak, one.p_value)
            assert (other["category_id"], other["nearest_class"]) == (1, names[one.nearest_class])
            assert "track_id" not in other
    with Image.open(out / "objects/a.png") as boxed, Image.open(out / "overlay/a.png") as plain:
        assert boxed.size == plain.size
        assert np.abs(np.asarray(boxed, int) - np.asarray(plain, int)).max() > 60
    assert not (out / "raw").exists()


def test_corners_of_the_image_are_run_lengths_too(segmenter, promised, tmp_path):
    segmenter.calibration = promised(6.0)
    pixels = np.zeros((5, 7, 3), np.uint8)
    pixels[..., 0] = 255  # red: known
    pixels[0, 0] = pixels[-1, -1] = 255  # white is far from every class
    Image.fromarray(pixels).save(tmp_path / "a.png")
    predict_files(Predictor(segmenter), [tmp_path / "a.png"], tmp_path / "out", objects=ObjectFiles())
    tree = json.loads((tmp_path / "out/objects.json").read_text())
    counts = [each["segmentation"]["counts"] for each in tree["annotations"]]
    assert sorted(counts) == [[0, 1, 34], [34, 1]]
    assert {each["nearest_class"] for each in tree["annotations"]} <= {0, 1, 2}


def test_objects_of_a_video_keep_their_ids_and_two_videos_share_none(segmenter, calibration, video, tmp_path):
    segmenter.calibration = calibration(5.0)  # grey frames: all of a frame is one object, or none is
    second = tmp_path / "second.mp4"
    second.write_bytes(video.read_bytes())
    predict_files(Predictor(segmenter), [video, second], tmp_path / "out", objects=ObjectFiles())
    tree = json.loads((tmp_path / "out/objects.json").read_text())
    assert len(tree["images"]) == 10
    by_image = {each["id"]: each["file_name"].split("/")[0] for each in tree["images"]}
    ids = {}
    for each in tree["annotations"]:
        ids.setdefault(by_image[each["image_id"]], []).append(each["track_id"])
    assert {name: set(numbers) for name, numbers in ids.items()} == {"clip.mp4": {1}, "second.mp4": {2}}
    assert len(ids["clip.mp4"]) > 1
