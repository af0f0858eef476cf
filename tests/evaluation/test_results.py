import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gmmseg.evaluation import (
    AnomalyCurve,
    CalibrationError,
    ComponentMetrics,
    ConfusionMatrix,
    EvaluationError,
    anomaly_entry,
    build_results,
    closed_set_entry,
    load_results,
    write_results,
)
from gmmseg.evaluation.per_image import KnownImages
from gmmseg.labels import IGNORE


def curve(**options: bool) -> AnomalyCurve:
    metric = AnomalyCurve(**options)
    mask = np.zeros((30, 30), dtype=np.uint8)
    mask[5:15, 5:15], mask[0] = 1, IGNORE
    metric.update(mask + np.linspace(0, 1.2, 900).reshape(30, 30), mask)
    return metric


def test_an_anomaly_entry_holds_figures_counts_and_protocol() -> None:
    parts = ComponentMetrics("obstacle", threshold=1.0)
    mask = np.zeros((30, 30), dtype=np.uint8)
    mask[5:15, 5:15] = 1
    parts.update(mask.astype(float), mask)
    entry = anomaly_entry({"nll": curve(per_image=True), "msp": curve()}, {"nll": parts})
    assert entry["scores"]["nll"]["auroc"] == curve().compute()["auroc"]
    assert entry["scores"]["nll"]["components"]["f1_star"] == 1
    assert set(entry["scores"]["nll"]["intervals"]) == {"auroc", "ap", "fpr95"}
    assert "components" not in entry["scores"]["msp"]
    assert (entry["images"], entry["pixels"], entry["ignored_pixels"]) == (1, 870, 30)
    assert "0.95" in entry["protocol"]["fpr95"]
    other = curve()
    other.update(np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(EvaluationError, match="different pixels"):
        anomaly_entry({"a": curve(), "b": other})


def test_a_closed_set_entry_names_its_classes() -> None:
    confusion, calibration = ConfusionMatrix(3), CalibrationError()
    posterior = torch.tensor([[0.7, 0.3], [0.3, 0.7], [0, 0]]).view(1, 3, 1, 2)
    labels = torch.tensor([[[0, 1]]])
    confusion.update(posterior.argmax(1), labels)
    calibration.update(posterior, labels)
    entry = closed_set_entry(confusion, calibration, ("road", "sky", "cat"))
    assert entry["metrics"]["miou"] == 1
    assert entry["metrics"]["ece"] == pytest.approx(0.3)
    assert entry["classes"]["road"]["iou"] == 1
    assert math.isnan(entry["classes"]["cat"]["iou"])
    assert len(entry["reliability"]["accuracy"]) == 15


def test_round_trip_with_nan_and_infinity(tmp_path: Path) -> None:
    results = build_results(
        "nan",
        {
            "a": {
                "task": "closed_set",
                "metrics": {"miou": math.nan, "pixel_accuracy": 0.5, "ece": 0.25},
                "x": math.nan,
                "y": [math.inf, -math.inf, 1.5],
                "z": np.float32(0.5),
                "t": torch.tensor([1, 2]),
            }
        },
        seeds={"bootstrap": 0},
        settings={"threshold": math.inf},
    )
    write_results(results, tmp_path / "deep" / "results.json")
    json.loads((tmp_path / "deep" / "results.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    loaded = load_results(tmp_path / "deep")
    assert math.isnan(loaded["sets"]["a"]["x"])
    assert loaded["sets"]["a"]["y"] == [math.inf, -math.inf, 1.5]
    assert loaded["sets"]["a"]["z"] == 0.5
    assert loaded["sets"]["a"]["t"] == [1, 2]
    assert loaded["name"] == "nan"
    assert loaded["settings"]["threshold"] == math.inf
    assert set(loaded["versions"]) >= {"python", "torch", "gmmseg"}


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(build_results("first", {}), path)
    with pytest.raises(TypeError):
        write_results({"format": 1, "sets": {"a": object()}}, path)
    assert load_results(path)["name"] == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such results file"),
        ("{", "not JSON"),
        ("[]", "not a results file"),
        ('{"format": 9}', "format 1"),
    ],
)
def test_files_that_are_no_results_are_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EvaluationError, match=rf"results\.json: .*{message}"):
        load_results(path)


def test_a_closed_set_entry_holds_its_matrix_and_the_intervals_of_its_classes(tmp_path: Path) -> None:
    confusion, images = ConfusionMatrix(3), KnownImages(3)
    for index in range(3):
        labels = torch.tensor([[0, 1, 1, IGNORE]])
        predicted = torch.tensor([[0, 1, index % 2, 2]])
        confusion.update(predicted, labels)
        images.update(index, str(index), predicted, labels, torch.zeros(1, 4))
    entry = closed_set_entry(confusion, None, ("road", "sky", "cat"), images=images)
    entry["metrics"]["ece"] = 0.1
    assert entry["confusion"] == [[3, 0, 0], [2, 4, 0], [0, 0, 0]]
    low, high = entry["classes"]["sky"]["iou_interval"]
    assert low <= entry["classes"]["sky"]["iou"] <= high
    path = tmp_path / "results.json"
    write_results(build_results("m", {"val": entry}), path)
    assert load_results(path)["sets"]["val"]["confusion"] == entry["confusion"]
    assert "      [2, 4, 0]" in "\n".join(line.rstrip(",") for line in path.read_text().splitlines())
    assert len(load_results(path)["sets"]["val"]["images_ranked"]["worst"]) == 3


def test_images_called_nan_and_classes_called_image_come_back_as_they_were(tmp_path: Path) -> None:
    confusion, images = ConfusionMatrix(2), KnownImages(2)
    labels = torch.zeros(1, 4, dtype=torch.int64)
    confusion.update(labels, labels)
    images.update(0, "nan", labels, labels, torch.zeros(1, 4))
    for absent in ("image", "name"):
        entry = closed_set_entry(confusion, None, ("road", absent), images=images)
        entry["metrics"]["ece"] = 0.1
        write_results(build_results("inf", {"val": entry}), tmp_path / "results.json")
        loaded = load_results(tmp_path)
        assert loaded["sets"]["val"]["images_ranked"]["worst"][0]["image"] == "nan"
        assert math.isnan(loaded["sets"]["val"]["classes"][absent]["iou"])
        assert loaded["name"] == "inf"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"confusion": [[1, 2]]}, "val.confusion is no table of 1 by 1"),
        ({"confusion": [[-1]]}, "val.confusion is no table"),
        ({"confusion": "many"}, "val.confusion is no table"),
        ({"classes": {"a": {"iou": 1}}}, "a.accuracy is missing"),
        ({"classes": {"a": {"iou": 1, "accuracy": 1, "iou_interval": [1]}}}, "a.iou_interval is no pair"),
        ({"classes": 3}, "val.classes is no mapping"),
        ({"intervals": {"miou": 3}}, "val.intervals holds something"),
        (
            {"images_ranked": {"worst": [{"image": 3, "index": 0}]}},
            "images_ranked.worst is no list of images",
        ),
        ({"images_ranked": {"worst": [{"image": "x", "index": -1}]}}, "images_ranked.worst is no list"),
        ({"images_ranked": []}, "images_ranked is no mapping"),
        ({"at_threshold": {"threshold": 1, "promise": "x", "score": 2}}, "at_threshold.score is no text"),
    ],
)
def test_parts_that_somebody_broke_are_named(tmp_path: Path, part: dict, message: str) -> None:
    entry = {
        "task": "closed_set",
        "metrics": {"miou": 0.5, "pixel_accuracy": 0.5, "ece": 0.25},
        "classes": {"a": {"iou": 1, "accuracy": 1}},
    }
    path = tmp_path / "results.json"
    write_results(build_results("m", {"val": entry | part}), path)
    with pytest.raises(EvaluationError, match=message):
        load_results(path)
