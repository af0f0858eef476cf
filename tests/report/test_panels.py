import io
from dataclasses import replace

import numpy as np
from PIL import Image

from gmmseg.class_colours import UNKNOWN_COLOUR
from gmmseg.inference.heat import HeatScale
from gmmseg.report.panels import LONGEST_SIDE, PHOTOGRAPH_SIDE, Example, ModelMaps, panel, side_by_side

COLOURS = ((200, 0, 0), (0, 0, 200))


def example(height: int, width: int) -> Example:
    labels = np.zeros((height, width), np.uint8)
    labels[:, width // 2 :] = 1
    unknown = np.zeros((height, width), np.uint8)
    unknown[: height // 2], unknown[-1] = 1, 255
    maps = ModelMaps(labels, np.ones((height, width), np.float32), unknown.astype(np.float32))
    return Example(
        "street", np.full((height, width, 3), 90, np.uint8), {"GMM": maps, "twin": maps}, labels, unknown
    )


def decoded(figure) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(figure.data))).astype(int)


def test_each_row_is_ground_truth_then_one_model():
    captions = [picture.caption.split(",")[0] for picture in panel(example(40, 60), COLOURS).pictures]
    assert captions == [
        "image",
        "GMM: prediction",
        "GMM: confidence",
        "GMM: anomaly score",
        "labels",
        "twin: prediction",
        "twin: confidence",
        "twin: anomaly score",
        "unknown objects (white)",
    ]
    alone = replace(example(40, 60), labels=None, unknown=None)
    assert len(panel(alone, COLOURS).pictures) == 1 + 2 * 3


def test_pictures_show_the_arrays():
    pictures = panel(example(40, 60), COLOURS).pictures
    image, prediction, confidence, mask = (decoded(pictures[i]) for i in (0, 1, 2, -1))
    assert abs(image - 90).max() <= 2
    left, right = prediction[:, : prediction.shape[1] // 2 - 8], prediction[:, prediction.shape[1] // 2 + 8 :]
    assert abs(left - COLOURS[0]).max() <= 12
    assert abs(right - COLOURS[1]).max() <= 12
    assert confidence.min() > 225, "certain is bright"
    assert [mask[row, 5, 0] > 200 for row in (0, -40)] == [True, False]
    assert all("street" in picture.alt for picture in pictures)


def test_small_images_are_enlarged_and_large_ones_shrunk():
    for size in ((1, 1), (40, 60), (900, 2000)):
        photograph, map_ = panel(example(*size), COLOURS).pictures[:2]
        shape, map_shape = decoded(photograph).shape, decoded(map_).shape
        assert LONGEST_SIDE / 2 < max(shape[:2]) <= PHOTOGRAPH_SIDE
        assert LONGEST_SIDE / 2 < max(map_shape[:2]) <= LONGEST_SIDE


def test_with_a_slider_each_row_ends_with_what_is_unknown_at_its_start():
    known = example(40, 60)
    levels = np.full((40, 60), 255, np.uint8)
    levels[:20], levels[20:30] = 1, 2
    maps = replace(known.models["GMM"], levels=levels)
    gallery = panel(replace(known, models={"GMM": maps}), COLOURS, start=1)
    assert gallery.columns == 5
    figure = next(picture for picture in gallery.pictures if picture.levels)
    stored = np.asarray(Image.open(io.BytesIO(figure.levels)))
    assert stored.shape == decoded(figure).shape[:2]
    assert np.array_equal(stored[4::8, 4::8], levels), "each pixel is repeated eight times"
    tinted = abs(decoded(figure) - 90).max(-1) > 15
    assert tinted[:150].all()
    assert not tinted[200:].any(), "unknown at the second position, not at the start"


def test_the_unknown_are_outlined_in_the_prediction():
    known = example(200, 240)
    maps = known.models["GMM"]
    maps = replace(maps, threshold=0.5, unknown=maps.anomaly == 1)
    gallery = panel(replace(known, models={"GMM": maps}), COLOURS)
    assert gallery.pictures[1].caption == "GMM: prediction, unknown outlined"
    outlined = decoded(gallery.pictures[1])
    half = outlined.shape[0] // 2
    outline = (abs(outlined - UNKNOWN_COLOUR) < 60).all(-1)
    assert outline[half - 2 : half + 4].any(0).mean() > 0.9
    assert not outline[: half - 8].any()
    assert not outline[half + 12 : -8].any()


def test_all_examples_of_a_model_have_its_scale():
    known = example(40, 60)
    maps = replace(known.models["GMM"], scale=HeatScale(-1, 9))
    caption = panel(replace(known, models={"GMM": maps}), COLOURS).pictures[3].caption
    assert caption == "GMM: anomaly score, -1 (dark) to 9 (bright)"


def test_models_are_shown_side_by_side_over_the_image_and_the_truth():
    gallery = side_by_side(example(40, 60), COLOURS)
    captions = [picture.caption for picture in gallery.pictures]
    assert gallery.columns == 3
    assert captions[:3] == ["image", "GMM: classes, unknown outlined", "GMM: anomaly score"]
    assert captions[3:4] == ["the truth: what no training image shows"]
    alone = replace(example(40, 60), unknown=None)
    assert "the truth" not in " ".join(picture.caption for picture in side_by_side(alone, COLOURS).pictures)
