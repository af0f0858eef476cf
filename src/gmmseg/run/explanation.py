"""An explanation of one pixel: a model and an image in, an HTML page out."""

from pathlib import Path

from gmmseg.images import load_image
from gmmseg.inference import Explanation, Predictor, explain
from gmmseg.report.explained import explanation_page
from gmmseg.run.exemplar_index import exemplars_of
from gmmseg.run.runs import open_model


def write_explanation(
    model: str | Path, image: Path, place: tuple[int, int], out: Path
) -> tuple[Explanation, bool]:
    """Write the page about pixel ``place`` (x, y) of an image; returns what it shows, if it has an index."""
    segmenter = open_model(model)
    index = exemplars_of(model, segmenter)
    predictor = Predictor(segmenter)
    pixels = load_image(image, max_pixels=predictor.max_pixels)
    explained = explain(predictor, pixels, *place, exemplars=index or ())
    photograph = (pixels.movedim(0, -1) * 255).round().byte().numpy()
    explanation_page(explained, photograph, image.name).write(out)
    return explained, index is not None
