from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from gmmseg.config import (
    DATA_PRESETS,
    ConfigError,
    config_tree,
    dump_config,
    load_config,
    parse_config,
    shipped_configs,
)
from gmmseg.data import DATASETS
from gmmseg.mixture import PRESETS
from gmmseg.models.heads import HEAD_PRESETS
from gmmseg.models.zoo import ZOO
from gmmseg.training.train_settings import TRAIN_PRESETS

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
            assert (config.preset, config.train.likelihood_weight) == ("paper", 0)
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


ALONE = ("train.density=false", "train.decoders=1")
SPELT_OUT = {
    "default": [],
    "paper": ["model.head=paper", "em.preset=paper", "train.likelihood_weight=0", *ALONE],
    "reference": [
        *("model.head=reference", "em.preset=reference", "data.balanced=true"),
        *("train.component_weight=0.01", "train.likelihood_weight=0", "train.link_multiplier=1"),
        *ALONE,
    ],
    "softmax": ["model.head=softmax", *ALONE],
}
FORMAT1 = Path(__file__).parent / "fixtures" / "format1"


@pytest.mark.parametrize("word", SPELT_OUT)
def test_a_preset_is_what_its_parts_are_and_its_word_is_written_down(word):
    config = load_config("camvid", [f"preset={word}"])
    assert config == load_config("camvid", SPELT_OUT[word])
    written = yaml.safe_load(dump_config(config))
    assert written["preset"] == word
    assert set(written["em"]) == set(asdict(config.em)), "every field is spelt out beside the word"
    read = parse_config(written)
    assert (read, read.preset) == (config, word)


def test_the_rooms_of_a_preset_know_the_same_words():
    assert set(HEAD_PRESETS) == set(TRAIN_PRESETS) == set(DATA_PRESETS) == set(SPELT_OUT)
    assert set(PRESETS) == set(SPELT_OUT) - {"softmax"}


def test_single_fields_hold_over_the_preset_in_any_order():
    fields = ["em.hard=true", "model.head.components=3", "train.likelihood_weight=0.1", "data.balanced=true"]
    first, last = (
        load_config("scenes", each) for each in (["preset=paper", *fields], [*fields, "preset=paper"])
    )
    assert first == last
    assert first.em == replace(PRESETS["paper"], hard=True)
    assert first.model.head == replace(HEAD_PRESETS["paper"], components=3)
    assert first.train.likelihood_weight == 0.1
    assert first.data.balanced
    twin = load_config("scenes", ["preset=paper", "model.head=softmax", "em.preset=reference"])
    assert (twin.model.head.kind, twin.em) == ("softmax", PRESETS["reference"])
    assert load_config("scenes", ["preset=softmax", "em.hard=false"]).model.head.kind == "softmax"


def test_a_projection_set_alone_leaves_the_coordinates_of_the_preset(tmp_path):
    """Also over a configuration of an earlier version, whose own projection said both."""
    for word in ("default", "paper"):
        named = load_config("scenes", [f"preset={word}", "model.head.projection=linear"])
        assert named == load_config("scenes", [f"preset={word}"])
    old = asdict(HEAD_PRESETS["paper"]) | {"projection": "l2"}
    del old["coordinates"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"model": {"head": old}}))
    changed = load_config(tmp_path / "old.yaml", ["model.head.projection=none"]).model.head
    assert changed == replace(HEAD_PRESETS["paper"], projection="none", coordinates="sphere")


def test_a_preset_on_top_replaces_the_fields_of_the_one_below(tmp_path):
    (tmp_path / "run.yaml").write_text(dump_config(load_config("scenes", ["preset=paper", "em.loops=2"])))
    (tmp_path / "own.yaml").write_text("include: [run.yaml]\npreset: reference\n")
    for config in (
        load_config(tmp_path / "run.yaml", ["preset=reference"]),
        load_config(tmp_path / "own.yaml"),
    ):
        assert config == load_config("scenes", ["preset=reference"])
        assert config.preset == "reference"


def test_a_preset_of_one_section_replaces_the_fields_spelt_out_below(tmp_path):
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(load_config("scenes")))
    changed = load_config(saved, ["em.decay=0.5", "em.preset=paper", "model.head.preset=reference"])
    assert changed.em == replace(PRESETS["paper"], decay=0.5), "keys given with it hold, in any order"
    assert changed.model.head == HEAD_PRESETS["reference"]
    assert (changed.train, changed.data) == (load_config(saved).train, load_config(saved).data)


@pytest.mark.parametrize(("name", "word"), [("scenes", "default"), ("paper", "paper"), ("held", "reference")])
def test_configurations_of_the_first_format_keep_their_fields(name, word):
    read, tree = load_config(FORMAT1 / f"{name}.yaml"), yaml.safe_load((FORMAT1 / f"{name}.yaml").read_text())
    hidden = ["data.held_out=[car]", "data.balanced=false"] if name == "held" else []
    now = load_config("scenes", [*SPELT_OUT[word], *hidden])
    assert (read.em, read.model, read.data) == (replace(now.em, decay_points=None), now.model, now.data)
    assert not read.train.density, "what an earlier version did not do, its runs go on without"
    assert tree["train"].items() <= config_tree(read)["train"].items()


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


ON_CPU = "train: {steps: 9, batch_size: 2}\non_cpu:\n  train: {steps: 3}\n  model: {name: fcn_resnet18}\n"


@pytest.mark.parametrize(
    ("overrides", "machine", "taken"),
    [
        ([], "gpu", ("gpu", 9)),
        ([], "cpu", ("cpu", 3)),
        (["train.steps=5"], "cpu", ("cpu", 5)),
        (["model.weights=file.pth"], "cpu", ("cpu", 3)),
        (["model.name=tiny_unet"], "cpu", ("gpu", 9)),  # a network of one's own brings its own settings
        (["model.weights=null"], "cpu", ("gpu", 9)),  # a frozen backbone must not be a random one
        (["model.name=tiny_unet", "machine=cpu"], "cpu", ("cpu", 3)),
        (["machine=gpu"], "cpu", ("gpu", 9)),
        (["machine=cpu"], "gpu", ("cpu", 3)),
        (["preset=softmax"], "cpu", ("cpu", 3)),
    ],
)
def test_a_file_may_hold_settings_for_a_machine_without_a_gpu(tmp_path, overrides, machine, taken):
    (tmp_path / "own.yaml").write_text(ON_CPU)
    config = load_config(tmp_path / "own.yaml", overrides, machine)
    assert (config.machine, config.train.steps) == taken
    assert config.train.batch_size == 2  # what on_cpu does not say is as in the file
    (tmp_path / "saved.yaml").write_text(dump_config(config))  # as a run saves it: on every machine the same
    for where in ("gpu", "cpu"):
        saved = load_config(tmp_path / "saved.yaml", machine=where)
        assert (saved, saved.machine) == (config, config.machine)


def test_odd_settings_for_a_machine_are_refused(tmp_path):
    path = tmp_path / "own.yaml"
    for text, said in (
        ("on_cpu: {train: {stepz: 3}}", r"own\.yaml, on_cpu: unknown key 'train\.stepz'"),
        ("on_cpu: fast", r"own\.yaml: on_cpu is a section of keys"),
        ("on_cpu: {on_cpu: {}}", r"own\.yaml, on_cpu: unknown key 'on_cpu'"),
        ("machine: tpu", r"machine: choose 'gpu' or 'cpu', got 'tpu'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_config(path)
    for words, said in (
        (["machine=cpu"], "one kind of machine"),
        (["on_cpu.train.steps=3"], "unknown key 'on_cpu'"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config("scenes", words)


def test_the_folder_recipe_for_a_cpu_trains_what_it_can_in_minutes():
    config = load_config("folder", machine="cpu")
    assert config.model.name == "light_efficientnet_lite0"
    assert (config.model.weights, config.train.backbone_multiplier) == ("pretrained", 0)
    assert config.train.cached_crops > 0
    assert config.train.steps < load_config("folder").train.steps


def test_a_run_folder_in_the_place_of_a_configuration_gets_the_command_that_resumes_it(tmp_path):
    (tmp_path / "config.yaml").write_text("name: scenes\n")
    with pytest.raises(ConfigError, match=rf"run folder.*{tmp_path}/config\.yaml --out {tmp_path} --resume"):
        load_config(str(tmp_path))
