"""From a name to folders of weights: both share their features, and nothing is overwritten."""

import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gmmseg
from gmmseg.cli import app
from gmmseg.config import load_config
from gmmseg.run import convert_source, train
from gmmseg.training.run_folder import WorkInFolder

RUNNER = CliRunner()


def test_the_twin_has_the_features_of_the_generative_model(tmp_path: Path) -> None:
    written = convert_source("timm:test_resnet", tmp_path, twin=True, class_names=("road", "sky"))
    model, twin = gmmseg.from_pretrained(tmp_path), gmmseg.from_pretrained(tmp_path / "twin")
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model.features(images).main, twin.features(images).main)
        assert torch.equal(model.features(images).main, written.eval().features(images).main)
    assert model.label_names == twin.label_names == ("road", "sky")
    assert (model.is_fitted, twin.is_fitted) == (False, True)
    assert twin.mixture is None


def test_weights_are_not_overwritten(tmp_path: Path) -> None:
    convert_source("tiny_unet", tmp_path / "twin", class_names=("a", "b"))
    with pytest.raises(WorkInFolder, match="holds weights already"):
        convert_source("tiny_unet", tmp_path, class_names=("a", "b"))
    assert not (tmp_path / "config.json").exists()


def test_the_command_takes_classes_from_a_set_or_a_list(tmp_path: Path) -> None:
    words = ["convert", "tiny_unet", "--preset", "paper"]
    done = RUNNER.invoke(app, [*words, "--out", str(tmp_path / "a"), "--data", "scenes", "--twin"])
    assert done.exit_code == 0, done.output
    assert f"model.name={tmp_path / 'a'}" in done.output
    assert f"gmmseg fit {tmp_path / 'a' / 'twin'}" in done.output
    model = gmmseg.from_pretrained(tmp_path / "a")
    assert "road" in model.label_names
    assert model.recipe["head"]["projection"] == "linear"
    done = RUNNER.invoke(app, [*words, "--out", str(tmp_path / "b"), "--classes", "road, sky"])
    assert done.exit_code == 0, done.output
    assert gmmseg.from_pretrained(tmp_path / "b").label_names == ("road", "sky")
    both = RUNNER.invoke(app, [*words, "--out", str(tmp_path / "c"), "--classes", "a", "--data", "scenes"])
    assert "give one of them" in str(both.exception)


def test_a_converted_folder_is_trained_by_its_name(tmp_path: Path) -> None:
    convert_source("tiny_unet", tmp_path / "start", class_names=("road", "sky"))
    few = ["train.steps=2", "train.batch_size=2", "data.validation_split=null", "data.workers=0"]
    overrides = [f"model.name={tmp_path / 'start'}", "train.learning_rate=1e-12", *few]
    with pytest.warns(UserWarning, match="2 of .* classes are known by name: .*; these start fresh"):
        weights = train(load_config("scenes", overrides), tmp_path / "run", cpu=True)
    trained, start = gmmseg.from_pretrained(weights), gmmseg.from_pretrained(tmp_path / "start")
    for (name, now), before in zip(
        trained.features.named_parameters(), start.features.parameters(), strict=True
    ):
        torch.testing.assert_close(now, before, msg=name)


def test_the_twin_of_a_generative_model_is_said_to_start_fresh(tmp_path: Path) -> None:
    convert_source("tiny_unet", tmp_path / "mixtures", class_names=("road", "sky"))
    with pytest.warns(UserWarning, match="mixtures: has mixtures and no softmax classifier"):
        convert_source(str(tmp_path / "mixtures"), tmp_path / "again", twin=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert_source("tiny_unet", tmp_path / "fresh", twin=True, class_names=("road", "sky"))
