"""The workflow as a user has it: train, evaluate, fit, predict, report, through the command line."""

import contextlib
import io
import json
import shutil
import sys
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg import cli, run
from gmmseg.config import dump_config, load_config
from gmmseg.data import Scenes, open_dataset
from gmmseg.inference import Predictor, calibrate
from gmmseg.models import Calibration, InferenceSettings
from gmmseg.models.calibration_file import PIXELS, Threshold
from gmmseg.models.saving import digest
from gmmseg.run.fit import labelled_cells
from gmmseg.training.run_folder import FolderInUse, WorkInFolder, locked

CLASSES = ("sky", "grass", "thing")


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def gmmseg_command(*words, check=True):
    """The command line in this process: what `gmmseg WORDS` prints and returns."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["gmmseg", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
    if check:
        assert code == 0, err.getvalue()
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder_data(tmp_path_factory):
    """A user's own folder: two textures and a box, told apart by colour."""
    root = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    (root / "classes.txt").write_text("\n".join(CLASSES))
    for split, count in (("train", 8), ("val", 3)):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True)
        for index in range(count):
            labels = np.zeros((40, 56), np.uint8)
            labels[20:] = 1
            top, left = rng.integers(4, 24), rng.integers(4, 40)
            labels[top : top + 10, left : left + 10] = 2
            colours = np.array([(90, 140, 230), (60, 150, 60), (200, 60, 40)])
            image = np.clip(colours[labels] + rng.normal(0, 12, (40, 56, 3)), 0, 255).astype(np.uint8)
            labels[0, 0] = 255
            Image.fromarray(image).save(root / "images" / split / f"{index}.png")
            Image.fromarray(labels).save(root / "labels" / split / f"{index}.png")
    return root


@pytest.fixture(scope="module")
def runs(folder_data, tmp_path_factory):
    """A GMM run and its softmax twin, trained through the command line."""
    out = tmp_path_factory.mktemp("runs")
    for name, head in (("gmm", "default"), ("softmax", "softmax")):
        gmmseg_command(
            "train", "folder", f"data.root={folder_data}", "data.crop=[32,48]", "data.workers=0",
            "model.name=tiny_unet", "model.weights=null", f"model.head={head}", "train.steps=40",
            "train.batch_size=4", "train.learning_rate=3e-3", "train.backbone_multiplier=1",
            "train.warmup_steps=5",
            "train.validate_every=20", "--out", out / name, "--cpu",
        )  # fmt: skip
    return out


def test_a_run_folder_holds_everything(runs, folder_data):
    run_folder = runs / "gmm"
    config = load_config(run_folder / "config.yaml")
    assert config.train.steps == 40
    assert config.data.root == str(folder_data)
    log = [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if entry["kind"] == "validation"] == [20, 40]
    assert (run_folder / "checkpoints" / "step_00000040.pt").is_file()
    for part in ("best", "final"):
        assert (run_folder / part / "model.safetensors").is_file()
        exported = gmmseg.from_pretrained(run_folder / part)
        assert exported.label_names == CLASSES
        assert exported.calibration.threshold is not None
        assert exported.temperature != 1
        assert exported.calibration.data.images == 3
        assert exported.density is not None
        assert exported.calibration.score == "fused"


def test_weights_that_are_the_same_share_their_calibration(tmp_path, monkeypatch):
    torch.manual_seed(0)
    for name in ("best", "other"):
        segmenter = gmmseg.build("tiny_unet", num_classes=3, head="softmax")
        segmenter.save_pretrained(tmp_path / name)
    segmenter.save_pretrained(tmp_path / "final")  # as other
    values = iter([(1.5, 0.9), (2.5, 1.1)])

    def found(predictor, *arguments, **options):
        threshold, temperature = next(values)
        thresholds = {PIXELS: Threshold(threshold, 0.05)}
        return Calibration(digest(predictor.segmenter), thresholds, temperature, None, None, None)

    monkeypatch.setattr(gmmseg.inference, "calibrate", found)
    folders = [tmp_path / name for name in ("best", "missing", "other", "final")]
    run.calibrate_folders(folders, Scenes("val", length=1))
    kept = [gmmseg.from_pretrained(folder).calibration for folder in folders if folder.is_dir()]
    assert [(each.threshold, each.temperature) for each in kept] == [(1.5, 0.9), (2.5, 1.1), (2.5, 1.1)]


def test_calibrate_chooses_anew_and_says_so(runs, folder_data, tmp_path):
    model = gmmseg.from_pretrained(runs / "gmm" / "best")
    expected = model.calibration
    weights = tmp_path / "weights"
    model.calibration = replace(expected, thresholds={}, temperature=5.0, typical=None)
    model.save_pretrained(weights)
    before = {name: (weights / name).read_bytes() for name in ("model.safetensors", "config.json")}
    said = gmmseg_command("calibrate", weights, "--data", f"folder:{folder_data}:val").stdout
    again = gmmseg.from_pretrained(weights)
    assert again.calibration == expected
    assert f"temperature {expected.temperature:.3f}" in said
    assert all((weights / name).read_bytes() == content for name, content in before.items())
    for folder, data, reason in (
        (tmp_path / "none", "scenes::val", "no such folder"),
        (weights, "scenes_anomaly::val", "not classes"),
        (weights, "scenes::val", "has 10 classes, the model 3"),
    ):
        refused = gmmseg_command("calibrate", folder, "--data", data, check=False)
        assert refused.returncode == 1
        assert reason in refused.stderr
    assert gmmseg.from_pretrained(weights).calibration == expected
    (weights / "calibration.json").write_text("{")
    gmmseg_command("calibrate", weights, "--data", f"folder:{folder_data}:val")  # mends it
    assert gmmseg.from_pretrained(weights).calibration == expected


def test_a_promise_is_asked_for_kept_and_told(runs, folder_data, tmp_path):
    weights, image = tmp_path / "weights", folder_data / "images/val/0.png"
    shutil.copytree(runs / "gmm" / "best", weights)
    command = ("calibrate", weights, "--data", f"folder:{folder_data}:val")
    before = (weights / "calibration.json").read_bytes()
    for words, reason in (
        (("--false-alarms", "0.01"), "0.01 false alarms per pixel need at least 99 images"),
        (("--per", "scene"), "per must be one of pixel, image"),
        (("--min-area", "5"), "belongs to false alarms per image"),
        (("--false-alarms", "1.5"), "--false-alarms"),
    ):
        refused = gmmseg_command(*command, *words, check=False)
        assert refused.returncode in (1, 2)
        assert reason in refused.stderr
        assert (weights / "calibration.json").read_bytes() == before
    said = gmmseg_command(*command, "--false-alarms", "0.34", "--per", "image", "--min-area", "9").stdout
    words = (
        "flags a region of at least 9 pixels in at most 34 % of new normal images like those of folder/val, 2"
    )
    assert words in said
    found = gmmseg.from_pretrained(weights).calibration
    assert (found.promise.per, found.promise.alpha, found.promise.images) == ("image", 0.34, 2)  # of 3
    assert found.threshold == max(found.false_alarms["image"].levels)  # 2 of 2: the largest
    assert words in gmmseg_command("predict", image, "-m", weights, "--out", tmp_path / "out").stdout


@pytest.mark.parametrize("part", ["", "best"])
def test_calibrate_leaves_a_run_alone_that_is_being_written(tmp_path, part):
    (tmp_path / "config.yaml").write_text(dump_config(load_config("scenes")))
    gmmseg.build("tiny_unet", num_classes=10, head="softmax").save_pretrained(tmp_path / "best")
    found = tmp_path / "best" / "calibration.json"
    with locked(tmp_path), pytest.raises(FolderInUse, match=f"{tmp_path}: process"):
        run.calibrate(tmp_path / part, Scenes("val", length=1))
    assert not found.exists()
    run.calibrate(tmp_path / part, Scenes("val", length=1))
    assert found.is_file()


@pytest.mark.parametrize(
    "words", [["fit", "absent", "--data", "scenes::train"], ["import", "absent.pth"]], ids=["fit", "import"]
)
def test_weights_that_are_there_are_not_replaced_by_fitted_or_imported_ones(tmp_path, words):
    (tmp_path / "model.safetensors").write_text("work")
    with pytest.raises(WorkInFolder, match=r"holds weights already \(model.safetensors\): choose another"):
        cli.app([*words, "--out", str(tmp_path)], standalone_mode=False)


def test_evaluate_writes_results_and_prints_a_table(runs, folder_data, tmp_path):
    result = gmmseg_command(
        "evaluate", runs / "gmm", "--data", f"folder:{folder_data}:val", "--data", "scenes_anomaly::val",
        "--out", tmp_path / "results.json",
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    closed, anomaly = results["sets"]["folder/val"], results["sets"]["scenes_anomaly/val"]
    assert closed["metrics"]["miou"] > 0.6
    assert closed["metrics"]["ece_as_trained"] != closed["metrics"]["ece"]
    assert closed["pixels"] == 3 * (40 * 56 - 1)
    assert closed["ignored_pixels"] == 3
    assert anomaly["images"] == 60
    assert set(anomaly["scores"]) == {
        *("nll", "nll_winner", "typicality", "msp", "entropy", "density", "fused")
    }
    assert f"{100 * closed['metrics']['miou']:.2f}" in result.stdout
    flagged = anomaly["at_threshold"]
    assert f"{100 * flagged['recall']:.1f} % of the unknown pixels found" in result.stdout
    assert "(the threshold is exceeded by 5 % of all known pixels of folder/val together" in result.stdout


def test_sets_of_one_name_and_later_evaluations_are_all_kept(runs, folder_data, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder_data, other)
    (other / "images/val/2.png").unlink()
    (other / "labels/val/2.png").unlink()
    results = tmp_path / "results.json"
    evaluate = ("evaluate", runs / "gmm", "--out", results, "--data")
    gmmseg_command(*evaluate, f"folder:{folder_data}:val", "--data", f"folder:{other}:val")
    gmmseg_command(*evaluate, f"folder:{folder_data}:train")
    gmmseg_command(*evaluate, f"folder:{folder_data}:val", "--short-side", "32")
    gmmseg_command(*evaluate, f"folder:{other}:val")
    sets = json.loads(results.read_text())["sets"]
    assert {key: entry["images"] for key, entry in sets.items()} == {
        "folder/val": 3,
        f"folder/val (root={other})": 2,
        "folder/train": 8,
        "folder/val (short_side=32)": 3,
    }
    before = results.read_bytes()
    for words, reason in (
        ((*evaluate, "scenes", "--data", "scenes"), "scenes/val: given twice"),
        (("evaluate", runs / "softmax", "--out", results, "-d", "scenes"), "holds results of 'gmm'"),
    ):
        refused = gmmseg_command(*words, check=False)
        assert refused.returncode == 1
        assert reason in refused.stderr
    assert results.read_bytes() == before


def test_scores_that_need_the_training_set_ask_for_it(runs, folder_data):
    anomalies = "scenes_anomaly::val"
    refused = gmmseg_command("evaluate", runs / "softmax", "-d", anomalies, "--scores", "sml", check=False)
    assert refused.returncode == 1
    assert "--train-data" in refused.stderr
    model = run.open_model(runs / "softmax")
    small = open_dataset("folder", folder_data, "train")
    dataset = gmmseg_anomalies()
    found = run.evaluate(
        model, "twin", [dataset], run.Judging(["sml", "mahalanobis", "knn", "max_logit"]), training_set=small
    )
    scores = found["sets"][f"{dataset.name}/{dataset.split}"]["scores"]
    assert set(scores) == {"sml", "mahalanobis", "knn", "max_logit"}
    assert all(0 <= each["auroc"] <= 1 for each in scores.values())


def gmmseg_anomalies():
    from gmmseg.data import ScenesAnomaly

    return ScenesAnomaly("val", size=(32, 48), length=6)


def test_post_hoc_mixtures_classify_on_untouched_features(runs, folder_data, tmp_path):
    gmmseg_command(
        "fit", runs / "softmax", "--data", f"folder:{folder_data}:train", "--out", tmp_path / "fitted",
        "--components", "2", "--on", "features",
    )  # fmt: skip
    fitted, twin = gmmseg.from_pretrained(tmp_path / "fitted"), run.open_model(runs / "softmax")
    assert fitted.mixture.num_components == 2
    dataset = open_dataset("folder", folder_data, "val")
    images = dataset[0].image[None].float() / 255
    assert torch.equal(fitted.features(images).main, twin.features(images).main), "the features are untouched"
    assert fitted.calibration.data.name == "folder", "calibrated on the validation set of the run"
    entry = run.evaluate(fitted, "fitted", [dataset])["sets"]["folder/val"]
    assert entry["metrics"]["miou"] > 0.5  # well above chance, and below the twin's, as in the paper


def test_fit_says_what_comes_next_and_how_it_looked(runs, folder_data, tmp_path):
    """Weights that have left their run, a network that cannot be split, a word that does not exist."""
    words = ["--data", f"folder:{folder_data}:train", "--components", 1, "--passes", 1]
    plain, converted = tmp_path / "plain", tmp_path / "converted"
    run.open_model(runs / "softmax").save_pretrained(plain)
    said = gmmseg_command("fit", plain, *words, "--out", tmp_path / "a")
    assert f"gmmseg calibrate {tmp_path / 'a'} --data NAME:ROOT:val" in said.stdout
    assert "cannot be split" not in said.stderr
    gmmseg.build("smp:Unet/resnet18", num_classes=3, head="softmax").save_pretrained(converted)
    val = ["--calibrate", f"folder:{folder_data}:val"]
    said = gmmseg_command("fit", converted, *words, *val, "--out", tmp_path / "b")
    assert "cannot be split" in said.stderr
    assert run.open_model(tmp_path / "b").calibration.score == "fused"
    gmmseg_command(
        "predict", folder_data / "images/val/0.png", "-m", tmp_path / "b", "--out", tmp_path / "p", "--raw"
    )
    expected = Predictor(run.open_model(tmp_path / "b")).predict(folder_data / "images/val/0.png")
    shown = np.load(tmp_path / "p" / "raw" / "0.npz")["anomaly"]
    assert np.array_equal(shown, expected.anomaly.numpy())
    refused = gmmseg_command("fit", plain, *words, "--out", tmp_path / "c", "--on", "head", check=False)
    assert refused.returncode == 1
    assert "on=head: choose backbone or features" in refused.stderr


def test_predict_writes_pictures_and_reports_what_it_could_not_read(runs, folder_data, tmp_path):
    pictures = tmp_path / "in"
    pictures.mkdir()
    (pictures / "broken.jpg").write_bytes(b"not a picture")
    Image.open(folder_data / "images/val/0.png").save(pictures / "fine.png")
    result = gmmseg_command(
        "predict",
        pictures,
        "--model",
        runs / "gmm" / "final",
        "--out",
        tmp_path / "out",
        "--raw",
        check=False,
    )
    assert result.returncode == 1
    assert "broken.jpg" in result.stderr
    for part in (
        "labels/fine.png",
        "overlay/fine.png",
        "anomaly/fine.png",
        "unknown/fine.png",
    ):
        assert (tmp_path / "out" / part).is_file(), part
    raw = np.load(tmp_path / "out" / "raw" / "fine.npz")
    assert raw["labels"].shape == (40, 56)
    np.testing.assert_allclose(raw["posterior"].sum(0), 1, atol=1e-3)


def test_resume_continues_and_a_second_start_is_refused(runs, folder_data):
    again = gmmseg_command("train", "folder", f"data.root={folder_data}", "--out", runs / "gmm", check=False)
    assert again.returncode == 1
    assert "--resume" in again.stderr


def test_compare_and_report(runs, folder_data, tmp_path):
    for name in ("gmm", "softmax"):
        gmmseg_command(
            "evaluate", runs / name, "-d", f"folder:{folder_data}:val", "-d", "scenes_anomaly::val"
        )
    table = gmmseg_command(
        "compare", runs / "gmm/results.json", runs / "softmax/results.json", "--paper", "GMMSeg-SegFormer"
    ).stdout
    assert "gmm" in table
    assert "quoted" in table.lower()
    gmmseg_command(
        "report", runs / "gmm", runs / "softmax", "-d", f"folder:{folder_data}:val",
        "-d", "scenes_anomaly::val",
        "--out", tmp_path / "report.html",
    )  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    for heading in (
        "Results",
        "What it looks like",
        "Finding the unknown",
        "Calibration",
        "Training",
        "Settings",
    ):
        assert heading in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_mistakes_are_one_line_without_a_traceback(tmp_path):
    for words, message in (
        (["train", "absent"], "shipped configuration"),
        (["evaluate", tmp_path / "absent", "-d", "scenes"], "absent"),
        (["data", "check", "camvid", tmp_path / "absent"], "absent"),
        (["train", "camvid"], "root"),
        (["predict", tmp_path, "--model", "runs/nope"], "runs/nope: no such folder"),
    ):
        result = gmmseg_command(*words, check=False)
        assert result.returncode != 0
        assert message in result.stderr + result.stdout
        assert "Traceback" not in result.stderr


def test_print_config_reads_back(tmp_path):
    text = gmmseg_command("train", "camvid", "train.steps=5", "--print-config").stdout
    (tmp_path / "copy.yaml").write_text(text)
    assert load_config(tmp_path / "copy.yaml") == load_config("camvid", ["train.steps=5"])


def test_held_out_classes_are_hidden_in_training_and_sought_in_the_test(folder_data):
    settings = load_config("folder", [f"data.root={folder_data}", "data.held_out=[thing]"]).data
    train, hidden = run.training_data(settings), run.hidden_data(settings, "val")
    assert train.label_space.names == ("sky", "grass")
    original, seen, mask = (
        open_dataset("folder", folder_data, "val")[0],
        run.validation_data(settings)[0],
        hidden[0],
    )
    assert torch.equal(seen.labels == 255, (original.labels == 2) | (original.labels == 255))
    assert torch.equal(mask.labels == 1, original.labels == 2)


@pytest.mark.parametrize("command", ["predict", "evaluate", "calibrate", "report"])
def test_a_converted_model_is_refused_until_its_mixtures_are_fitted(tmp_path, folder_data, command):
    segmenter = gmmseg.build("tiny_unet", num_classes=len(CLASSES))
    segmenter.save_pretrained(tmp_path / "raw" / "best")
    data = f"folder:{folder_data}:val"
    words = {
        "predict": ["predict", folder_data / "images" / "val", "--model", tmp_path / "raw"],
        "evaluate": ["evaluate", tmp_path / "raw", "--data", data],
        "calibrate": ["calibrate", tmp_path / "raw", "--data", data],
        "report": ["report", tmp_path / "raw", "--data", data],
    }
    outcome = gmmseg_command(*words[command], check=False)
    assert outcome.returncode == 1
    assert "raw" in outcome.stderr
    assert "never been fitted" in outcome.stderr
    assert "gmmseg fit" in outcome.stderr


def test_held_out_classes_are_judged_from_the_command_line(folder_data, tmp_path):
    run_folder = tmp_path / "open"
    gmmseg_command(
        "train", "folder", f"data.root={folder_data}", "data.crop=[32,48]", "data.workers=0",
        "data.held_out=[thing]", "model.name=tiny_unet", "model.weights=null", "train.steps=2",
        "train.batch_size=2", "--out", run_folder, "--cpu",
    )  # fmt: skip
    data = f"folder:{folder_data}:val"
    for source in (run_folder, run_folder / "final"):
        gmmseg_command(
            "evaluate", source, "-d", data, "--scores", "nll,mahalanobis",
            "--train-data", f"folder:{folder_data}:train", "--out", tmp_path / f"{source.name}.json",
        )  # fmt: skip
    sets = json.loads((tmp_path / "open.json").read_text())["sets"]
    assert set(sets) == {"folder_without_thing/val", "folder_hidden_thing/val"}
    assert set(sets["folder_without_thing/val"]["classes"]) == {"sky", "grass"}
    things = sum(int((sample.labels == 2).sum()) for sample in open_dataset("folder", folder_data, "val"))
    assert sets["folder_hidden_thing/val"]["anomalous_pixels"] == things
    assert sets["folder_without_thing/val"]["pixels"] == 3 * (40 * 56 - 1) - things
    assert set(json.loads((tmp_path / "final.json").read_text())["sets"]) == set(sets)
    gmmseg_command("report", run_folder, "-d", data, "--out", tmp_path / "report.html")
    assert "unknown objects (white)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "inference", [{"short_side": 48}, {"window": 64, "stride": 40}, {"short_side": 60, "window": 64}]
)
def test_the_view_of_validation_is_that_of_every_command(tmp_path, inference):
    """Validation, evaluation and prediction of one image agree without a flag, and flags override."""
    settings = [f"inference.{name}={value}" for name, value in inference.items()]
    config = load_config("scenes", [*settings, "model.head=softmax"])
    dataset = run.training_data(config.data)
    segmenter = run.make_segmenter(config, dataset)
    segmenter.save_pretrained(tmp_path / "weights")
    model = run.open_model(tmp_path / "weights")
    assert model.inference == config.inference
    sample = dataset[0]
    predicted = Predictor(model).predict(sample.image)
    shown = Predictor(model).maps(sample)
    assert torch.equal(predicted.posterior, shown.posterior[0])
    assert torch.equal(predicted.anomaly, shown.anomaly[0])
    told = Predictor(model, short_side=0, window=0)
    assert not torch.equal(told.predict(sample.image).anomaly, predicted.anomaly)
    bare = gmmseg.from_pretrained(tmp_path / "weights")
    bare.inference = InferenceSettings()
    flagged = Predictor(bare, **inference).predict(sample.image)
    assert torch.equal(flagged.anomaly, predicted.anomaly)


def test_weights_without_a_view_look_at_whole_images(tmp_path):
    gmmseg.build("tiny_unet", num_classes=3, head="softmax").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["inference"]
    path.write_text(json.dumps(config))
    assert run.open_model(tmp_path).inference == InferenceSettings()


def test_evaluate_calibrate_and_fit_look_as_validation_did(tmp_path):
    config = load_config("scenes", ["inference.short_side=48", "model.head=softmax"])
    dataset = Scenes("val", size=(96, 160), length=3)
    model = run.make_segmenter(config, dataset).eval()
    entry = run.evaluate(model, "seen", [dataset])
    assert entry["settings"]["inference"] == {"short_side": 48, "window": None, "stride": None}
    metrics = next(iter(entry["sets"].values()))["metrics"]
    assert metrics["ece"] == run.validate(model, dataset)["ece"]
    judging = run.Judging(inference=InferenceSettings(short_side=0))
    whole = run.evaluate(model, "whole", [dataset], judging)
    assert next(iter(whole["sets"].values()))["metrics"]["ece"] != metrics["ece"]
    model.save_pretrained(tmp_path)
    found = run.calibrate_folders([tmp_path], dataset)[tmp_path]
    assert found == calibrate(Predictor(model), dataset)
    assert found != calibrate(Predictor(model, short_side=0), dataset)
    sizes = []
    model.features.register_forward_hook(lambda _, given, __: sizes.append(given[0].shape[-2:]))
    list(labelled_cells(model, dataset))
    assert set(sizes) == {(48, 80)}


def test_predict_takes_a_shorter_side_and_a_limit(runs, folder_data, tmp_path):
    image, weights = folder_data / "images/val/0.png", runs / "gmm" / "final"
    gmmseg_command("predict", image, "-m", weights, "--out", tmp_path, "--raw", "--short-side", 32)
    expected = Predictor(run.open_model(weights), short_side=32).predict(image)
    assert np.array_equal(np.load(tmp_path / "raw" / "0.npz")["anomaly"], expected.anomaly.numpy())
    refused = gmmseg_command(
        "predict", image, "-m", weights, "--out", tmp_path, "--max-pixels", 999, check=False
    )
    assert refused.returncode == 1
    assert "0.png: not a readable image, its 56x40 = 2,240 pixels exceed the limit of 999" in refused.stderr
    assert "--max-pixels 2240" in refused.stderr


def test_predict_refuses_weights_that_are_not_numbers(runs, folder_data, tmp_path):
    model = run.open_model(runs / "gmm" / "final")
    with torch.no_grad():
        next(model.parameters())[0] = torch.nan
    model.save_pretrained(tmp_path / "weights")
    words = (folder_data / "images/val/0.png", "-m", tmp_path / "weights", "--out", tmp_path / "out")
    refused = gmmseg_command("predict", *words, check=False)
    assert refused.returncode == 1
    assert "NaN" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_gets_the_same_answer_in_evaluate_and_predict(tmp_path):
    """Bit for bit, whatever the file's kind: data set, network and maps on one side, a path on the other."""
    values = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = {
        "rgb.png": Image.fromarray(values),
        "grey.png": Image.fromarray(values[..., 0]),
        "palette.png": Image.fromarray(values).quantize(9),
        "rgba.png": Image.fromarray(np.dstack([values, values[..., 0]])),
        "deep.png": Image.fromarray(values[..., 0].astype(np.uint16) * 201),
        "int.tif": Image.fromarray(values[..., 0].astype(np.int32) * 257),
        "float.tif": Image.fromarray(values[..., 1].astype(np.float32) / 300),
        "turned.jpg": Image.fromarray(values),
    }
    (tmp_path / "images/val").mkdir(parents=True)
    (tmp_path / "labels/val").mkdir(parents=True)
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    for name, image in kinds.items():
        options = {"exif": exif} if name.startswith("turned") else {}
        image.save(tmp_path / "images/val" / name, **options)
        size = (56, 40) if options else (40, 56)
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / f"labels/val/{name.partition('.')[0]}.png")
    predictor = Predictor(gmmseg.build("tiny_unet", num_classes=3, head="softmax"), short_side=32)
    for pair, sample in zip((dataset := open_dataset("folder", tmp_path, "val")).pairs, dataset):
        judged, predicted = predictor.maps(sample), predictor.predict(pair.image)
        assert torch.equal(judged.posterior[0], predicted.posterior), pair.image
        assert torch.equal(judged.anomaly[0], predicted.anomaly), pair.image
    assert len(dataset) == len(kinds)


def test_fit_leaves_out_the_classes_a_run_held_out_and_refuses_other_classes(tmp_path, folder_data):
    """The hidden class must not be learned under another one's number; its weights can be judged, too."""
    folder = tmp_path / "run"
    tiny = [
        "model.name=tiny_unet",
        "model.weights=null",
        "train.steps=2",
        "data.crop=[32,32]",
        "data.workers=0",
    ]
    words = [f"data.root={folder_data}", "data.held_out=[grass]", "model.head=softmax", "train.batch_size=2"]
    gmmseg_command("train", "folder", *words, *tiny, "--out", folder, "--cpu")
    data, fitted = f"folder:{folder_data}:train", tmp_path / "fitted"
    said = gmmseg_command("fit", folder, "--data", data, "--out", fitted, "--passes", 1)
    assert "calibrated on folder" in said.stdout
    assert "never been fitted" not in said.stderr
    model = gmmseg.from_pretrained(fitted)
    assert model.label_names == ("sky", "thing")
    assert model.calibration.score == "fused"
    expected, _ = run.fit_density(
        run.open_model(folder),
        run.judged_sets(folder, open_dataset("folder", folder_data, "train"))[0],
        5,
        passes=1,
    )
    assert torch.equal(model.density.mixture.means, expected.density.mixture.means)
    gmmseg_command("evaluate", fitted, "--data", f"folder:{folder_data}:val")
    judged = json.loads((fitted / "results.json").read_text())["sets"]
    assert sorted(entry["task"] for entry in judged.values()) == ["anomaly", "closed_set"]
    with pytest.raises(ValueError, match="3 classes, the model 2"):
        run.fit_density(run.open_model(folder), open_dataset("folder", folder_data, "train"))
