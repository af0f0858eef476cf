"""The model card: true to the files beside it, never over a person's words."""

import json
import re

import pytest
import torch

import gmmseg
from gmmseg.data import Scenes
from gmmseg.evaluation import build_results
from gmmseg.evaluation.records import record_results
from gmmseg.inference import FalseAlarms, Predictor, calibrate
from gmmseg.models.calibration_file import write_calibration
from gmmseg.models.card import CARD_FILE, MARK
from gmmseg.models.saving import digest, refresh_card

NAMES = tuple(Scenes("val").label_space.names)


@pytest.fixture(scope="module")
def segmenter():
    torch.manual_seed(0)
    model = gmmseg.build("tiny_unet", num_classes=len(NAMES), head="softmax")
    model.label_names = NAMES
    return model


@pytest.fixture
def folder(segmenter, tmp_path):
    segmenter.save_pretrained(tmp_path / "best")
    return tmp_path / "best"


def card(folder):
    return (folder / CARD_FILE).read_text()


def test_it_names_network_head_and_classes_and_says_what_is_missing(folder):
    text = card(folder)
    assert text.startswith(f"{MARK}\n\n# tiny\\_unet, 10 classes")
    assert "- head: softmax" in text
    assert ", ".join(NAMES) in text
    for missing in ("Not calibrated", "not recorded beside the weights", "None are recorded"):
        assert missing in text
    assert re.findall("^## (.*)", text, re.MULTILINE) == [
        "Load it", "Architecture", "Data", "Results", "Calibration", "Limits", "Licence"
    ]  # fmt: skip


def test_its_three_lines_load_the_model(folder, tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", card(folder), re.DOTALL)[1]
    assert len(code.splitlines()) == 3
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (48, 32)).save("photo.jpg")
    found = {}
    exec(code.replace("FOLDER", str(folder)), found)
    assert found["prediction"].labels.shape == (32, 48)


def test_the_promise_and_the_results_come_in_when_they_are_there(segmenter, folder):
    found = calibrate(
        Predictor(segmenter), Scenes("val", size=(32, 48), length=19), false_alarms=FalseAlarms(0.05)
    )
    write_calibration(found, folder)
    entry = {"metrics": {"miou": 0.4321, "ece": 0.01}}
    strange = {"scores": {"nll": {"auroc": 0.75, "ap": 0.1, "fpr95": 0.6, "curve": {}}}}
    (folder.parent / "results.json").write_text(
        json.dumps({"weights": digest(segmenter), "sets": {"scenes/test": entry, "odd|one": strange}})
    )
    refresh_card(folder)
    text = card(folder)
    assert "flags on average at most 5 % of the known pixels of a new image" in text
    assert "Calibrated on 19 images of scenes/val." in text
    assert "from `../results.json`" in text
    assert "| scenes/test |  | miou 43.2, ece 1.0 |" in text
    assert "| odd\\|one | nll | auroc 75.0, ap 10.0, fpr95 60.0 |" in text


def test_figures_of_another_calibration_say_so(segmenter, folder):
    scenes = Scenes("val", size=(32, 48), length=19)
    found = calibrate(Predictor(segmenter), scenes, false_alarms=FalseAlarms(0.05))
    write_calibration(found, folder)
    results = folder / "results.json"

    def record(calibrated, sets):
        made = build_results("m", sets, settings={"calibrated": calibrated}, weights=digest(segmenter))
        record_results(made, results)

    def shown():
        refresh_card(folder)
        rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", card(folder), re.MULTILINE)
        return {(name, score): text for name, score, text in rows[1:]}

    entry = {"task": "closed_set", "metrics": {"miou": 0.4321, "pixel_accuracy": 0.5, "ece": 0.1}}
    figures = {"auroc": 0.75, "ap": 0.1, "fpr95": 0.6}
    strange = {"task": "anomaly", "scores": {"nll": figures, "fused": figures}}
    record("2020-01-01T00:00:00+00:00", {"then": entry, "strange": strange})
    record(found.time, {"now": entry, "strange": {**strange, "scores": {"fused": figures}}})
    plain, other = "miou 43.2, ece 10.0", " (with another calibration)"
    detected = "auroc 75.0, ap 10.0, fpr95 60.0"
    assert shown() == {
        ("then", ""): plain + other,
        ("now", ""): plain,
        ("strange", "nll"): detected + other,
        ("strange", "fused"): detected,
    }
    results.write_text(json.dumps({"weights": digest(segmenter), "sets": {"written before": entry}}))
    assert shown() == {("written before", ""): plain}


def test_figures_of_other_weights_are_not_shown(segmenter, folder):
    entry = {"metrics": {"miou": 0.4321}}
    for weights, shown in ((digest(segmenter), True), ("other", False), (None, False)):
        (folder / "results.json").write_text(json.dumps({"weights": weights, "sets": {"a": entry}}))
        refresh_card(folder)
        assert ("miou 43.2" in card(folder)) == shown
        segmenter.save_pretrained(folder)
        assert ("miou 43.2" in card(folder)) == shown


def test_one_odd_entry_of_the_results_takes_nothing_from_the_others(segmenter, folder):
    sets = {
        "a\ud800": {"metrics": {"miou": float("nan")}},
        "b": {"metrics": {"miou": "x"}},
        "c": 3,
        "d\ud800": {"metrics": {"miou": 0.5, "ece": float("inf")}},
        "e": {"metrics": {}},
    }
    (folder / "results.json").write_text(json.dumps({"weights": digest(segmenter), "sets": sets}))
    refresh_card(folder)
    text = card(folder)
    assert re.findall(r"^\| (.*) \|  \| (.*) \|$", text, re.MULTILINE) == [("d?", "miou 50.0")]


def test_where_nothing_is_promised_the_card_says_nothing_of_a_promise(segmenter, folder):
    with pytest.warns(UserWarning, match="without a promise"):
        found = calibrate(Predictor(segmenter), Scenes("val", size=(32, 48), length=5))
    write_calibration(found, folder)
    refresh_card(folder)
    assert "no promise of a new image" in card(folder)
    assert "the promise holds" not in card(folder)


def test_equal_models_have_equal_cards(segmenter, folder, tmp_path):
    segmenter.save_pretrained(tmp_path / "again")
    assert card(folder) == card(tmp_path / "again")


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_a_person_put_there_stays(segmenter, folder, tmp_path, kind):
    path = folder / CARD_FILE
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "mine.md").write_text(MARK)
        path.symlink_to(tmp_path / "mine.md")
    else:
        path.write_text("# My model\n")
    segmenter.save_pretrained(folder)
    refresh_card(folder)
    assert path.is_dir() if kind == "folder" else path.read_text() == ("# My model\n", MARK)[kind == "link"]


@pytest.mark.parametrize("broken", ["{", "[]", '{"sets": 3}', '{"sets": {"a": {"metrics": {"miou": "x"}}}}'])
def test_broken_results_say_nothing(folder, broken):
    (folder / "results.json").write_text(broken)
    refresh_card(folder)
    assert "None are recorded" in card(folder)


def test_names_cannot_act_on_the_page(segmenter, tmp_path):
    copy = gmmseg.build("tiny_unet", num_classes=2, head="softmax")
    copy.label_names = ("<img src=x>", "[a](b)\n# c")
    copy.save_pretrained(tmp_path)
    assert "\\<img src=x\\>, \\[a\\]\\(b\\) \\# c." in card(tmp_path)
