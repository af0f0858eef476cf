from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gmmseg.config import ConfigError, dump_config, load_config, parse_config, shipped_configs
from gmmseg.data import DATASETS
from gmmseg.mixture import PRESETS
from gmmseg.models.heads import HEAD_PRESETS
from gmmseg.models.zoo import ZOO

PAPER_ARCHITECTURES = (
    "fcn_resnet101",
    "deeplabv3plus_resnet101",
    "ocrnet_hrnet_w48",
    "upernet_swin_base",
    "segformer_mit_b5",
    "mask2former_swin_large",
)


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_name_things_that_exist_and_survive_a_round_trip(name):
    config = load_config(name)
    assert config.model.name in ZOO
    assert config.data.name in DATASETS
    assert config.name == name
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_every_cell_of_the_papers_tables_is_shipped_with_its_recipe():
    for data, steps in (("ade20k", 160_000), ("coco_stuff_10k", 80_000), ("cityscapes", 80_000)):
        for architecture in PAPER_ARCHITECTURES:
            config = load_config(f"{data}_{architecture}")
            expected = 90_000 if (data, architecture) == ("cityscapes", "mask2former_swin_large") else steps
            assert config.train.steps == expected
            assert config.model.head == HEAD_PRESETS["paper"]
            assert config.em == PRESETS["paper"]
    assert load_config("ade20k_fcn_resnet101").train.optimizer == "sgd"
    segformer = load_config("cityscapes_segformer_mit_b5").train
    assert segformer.learning_rate * segformer.backbone_multiplier == pytest.approx(6e-5)
    assert load_config("cityscapes_mask2former_swin_large").data.crop == (1024, 1024)


def test_overrides_reach_into_sections_and_presets():
    overrides = [
        "train.steps=7",
        "em.preset=reference",
        "em.hard=false",
        "model.head.components=3",
        "train.learning_rate=1e-5",
    ]
    config = load_config("scenes", overrides)
    assert config.train.steps == 7
    assert config.train.learning_rate == 1e-5
    assert config.em.correct_only
    assert not config.em.hard
    assert config.model.head.components == 3
    assert load_config("scenes", ["model.head=softmax"]).model.head.kind == "softmax"
    paper = load_config("ade20k_fcn_resnet101", ["model.head.components=3"]).model.head
    assert paper == replace(HEAD_PRESETS["paper"], components=3)
    assert load_config("ade20k_fcn_resnet101", ["model.head.preset=softmax"]).model.head.kind == "softmax"


def test_the_word_no_is_a_precision_although_yaml_reads_it_as_false(tmp_path):
    (tmp_path / "own.yaml").write_text("train: {precision: no}")
    assert load_config(tmp_path / "own.yaml").train.precision == "no"
    assert load_config("scenes", ["train.precision=no"]).train.precision == "no"
    with pytest.raises(ConfigError, match=r"train\.precision"):
        load_config("scenes", ["train.precision=yes"])


def test_a_file_builds_on_what_it_includes(tmp_path):
    (tmp_path / "base.yaml").write_text("train: {steps: 5, batch_size: 3}\n")
    (tmp_path / "top.yaml").write_text("include: [base.yaml]\ntrain: {steps: 9}\n")
    config = load_config(tmp_path / "top.yaml")
    assert (config.train.steps, config.train.batch_size) == (9, 3)


def test_toml_reads_the_same(tmp_path):
    (tmp_path / "a.toml").write_text('[train]\nsteps = 5\n[model]\nhead = "softmax"\n')
    (tmp_path / "a.yaml").write_text("train: {steps: 5}\nmodel: {head: softmax}\n")
    assert load_config(tmp_path / "a.toml") == load_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {stepz: 5}", "unknown key 'train.stepz'; there are: steps"),
        ("trian: {}", "unknown key 'trian'"),
        ("train: {steps: many}", "train.steps: Input should be a valid integer"),
        ("train: {optimizer: adam}", "choose 'adamw' or 'sgd', got 'adam'"),
        ("em: {preset: mine}", "choose paper, reference, default"),
        ("em: 5", "em is a section"),
        ("include: [absent.yaml]", "includes absent.yaml, which is not there"),
        ("a: [", "cannot be parsed"),
        ("- 1", "mapping of sections"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"wrong\.yaml") as refused:
        load_config(path)
    assert message in str(refused.value)


def test_names_that_are_not_there_are_refused_with_those_that_are():
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(Path("absent.yaml"))
    with pytest.raises(ConfigError, match="camvid"):
        load_config("absent")
    with pytest.raises(ConfigError, match=r"section.key=value"):
        load_config("scenes", ["steps"])
