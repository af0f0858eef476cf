"""What a report says about whom: from results files alone."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gmmseg
from gmmseg import run
from gmmseg.data import Scenes, ScenesAnomaly
from gmmseg.evaluation import build_results, write_results
from gmmseg.inference import Predictor
from gmmseg.run import report
from gmmseg.run.report import distinct_names, open_sources, typical_image, write_report
from gmmseg.samples import Sample


def closed(miou):
    return {"task": "closed_set", "metrics": {"miou": miou, "pixel_accuracy": 0.9, "ece": 0.1}}


def anomaly(ap):
    curve = {"thresholds": [2.0, 1.0], "tpr": [0.5, 1.0], "fpr": [0.1, 1.0], "precision": [0.5, 0.1]}
    return {"task": "anomaly", "scores": {"msp": {"auroc": 0.8, "ap": ap, "fpr95": 0.5, "curve": curve}}}


def results(path: Path, **sets) -> Path:
    write_results(build_results(path.parent.name, sets), path)
    return path


def test_runs_of_one_folder_name_are_told_apart(tmp_path):
    sources = [
        results(tmp_path / place / "gmm/results.json", val=closed(0.5), strange=anomaly(0.3)).parent
        for place in ("first", "second")
    ]
    write_report(sources, [], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for name in ("first/gmm", "second/gmm"):
        assert f"{name}: msp" in page
    with pytest.raises(ValueError, match="twice"):
        open_sources([sources[0], sources[0]])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_strangest_pixels_are_explained_with_training_pixels(tmp_path):
    scenes, strange = (kind("val", size=(32, 48), length=3) for kind in (Scenes, ScenesAnomaly))
    network = gmmseg.build("tiny_unet", class_names=scenes.label_space.names, head="softmax")
    network.label_names = scenes.label_space.names
    model, _ = run.fit_head(network.eval(), scenes, 2, passes=2)
    model.save_pretrained(tmp_path / "fitted")
    run.build_exemplars(tmp_path / "fitted", model, scenes)
    write_report([tmp_path / "fitted"], [scenes, strange], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().split(">Why</h2>")[1].split("<h2")[0]
    scores = Predictor(model).predict(scenes[0].image).anomaly
    y, x = divmod(int(scores.argmax()), 48)
    assert f"{scenes[0].name}, pixel {x},{y}" in page
    assert page.count("<img") > 4  # two of each image, and training pixels
    network.save_pretrained(tmp_path / "softmax")
    write_report([tmp_path / "softmax"], [scenes], tmp_path / "report.html")
    assert ">Why</h2>" not in (tmp_path / "report.html").read_text()


def test_names_take_as_many_folders_as_they_need():
    sources = [Path("/x/a/run"), Path("/y/a/run"), Path("/x/b/run"), Path("/x/other")]
    names = distinct_names([source.name for source in sources], sources)
    assert names == ["x/a/run", "y/a/run", "b/run", "other"]


def strange_image(index: int, unknown: int, brightness: int) -> Sample:
    """20 x 10 pixels of one brightness, of which the first ``unknown`` are unknown."""
    labels = torch.zeros(200, dtype=torch.uint8)
    labels[:unknown] = 1
    image = torch.full((3, 20, 10), brightness, dtype=torch.uint8)
    image[0, 0, 0] = index  # by which the model below knows it
    return Sample(image, labels.view(20, 10), f"image {index}")


class Guesses:
    """In the place of a Predictor: image i has i of its known pixels above all of its unknown ones."""

    def __init__(self, model: None) -> None:
        pass

    def predict(self, image: torch.Tensor) -> SimpleNamespace:
        scores = torch.zeros(200)
        scores[:20] = 1.0
        scores[20 : 20 + int(image[0, 0, 0])] = 2.0
        return SimpleNamespace(anomaly=scores.view(20, 10))


def test_the_picture_is_of_the_image_in_the_middle_and_not_of_the_best(monkeypatch):
    monkeypatch.setattr(report, "Predictor", Guesses)
    bright = [strange_image(index, 20, 200) for index in (40, 5, 90, 20)]
    dark = [strange_image(index, 20, 30) for index in (60, 61, 62, 63)]
    small = [strange_image(7, 1, 255)]
    assert typical_image(None, [*dark, *small, *bright]) == 5, "40 is the worse of 20 and 40, the middle ones"
    assert typical_image(None, [strange_image(0, 0, 9), *small]) == 1, (
        "the one with most, where all have little"
    )
