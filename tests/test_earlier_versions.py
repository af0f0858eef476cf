"""What earlier versions have written is read with the meaning it had: weights, recipes, configurations."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import gmmseg
from gmmseg.config import ConfigError, config_tree, dump_config, load_config, parse_config
from gmmseg.evaluation import load_results
from gmmseg.inference import Predictor
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models.heads import HEAD_PRESETS, HeadSettings
from gmmseg.models.saving import CONFIG_FILE, WEIGHTS_FILE, present_names
from gmmseg.report.tables import compare
from gmmseg.run.report import write_report
from gmmseg.run.resuming import check_resumable
from gmmseg.training.checkpoint import CheckpointError

FORMAT1 = Path(__file__).parent / "fixtures" / "format1"
IMAGES = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", HEAD_PRESETS)
def test_saved_weights_give_the_outputs_they_gave(name):
    """Recorded by the version that wrote the weights; bit for bit on the machine where that was."""
    model = gmmseg.from_pretrained(FORMAT1 / name)
    expected = np.load(FORMAT1 / name / "expected.npz")
    with torch.no_grad():
        np.testing.assert_allclose(model(IMAGES[:1]).logits, expected["logits"], rtol=1e-4, atol=1e-4)
    found = Predictor(model).predict((IMAGES[0] * 255).byte())
    np.testing.assert_allclose(found.anomaly[::8, ::8], expected["anomaly"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.posterior[:, ::8, ::8], expected["posterior"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_em_goes_the_way_it_went(name):
    """Six steps from saved weights, as the version that wrote them did them.

    Where two components are equally near, another machine may choose the other one: hence the tolerance.
    """
    model = gmmseg.from_pretrained(FORMAT1 / name)
    assert model.mixture is not None
    then = replace(PRESETS[name], memory_size=500, correct_only=False, decay_points=None)
    em = OnlineEM(model.mixture, then, seed=4)
    generator = torch.Generator().manual_seed(6)
    likelihoods = []
    for step in range(6):
        images = torch.rand(2, 3, 64, 64, generator=generator)
        cells = torch.randint(0, 10, (2, 8, 8), generator=generator)
        labels = cells.repeat_interleave(8, 1).repeat_interleave(8, 2)
        with torch.no_grad():
            batch = model.em_points(model(images), labels)
        em.step(*batch, forgetting_scale=1 - step / 6)
        likelihoods.append(float(em.log_likelihood))
    expected = np.load(FORMAT1 / "em.npz")
    np.testing.assert_allclose(likelihoods, expected[f"{name}_log_likelihoods"], rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(model.mixture.means, expected[f"{name}_means"], atol=5e-3)
    np.testing.assert_allclose(model.mixture.variances, expected[f"{name}_variances"], atol=5e-3)


OLD_NAMES = {
    "whitened": (HeadSettings(dim=8), ("mixture.coordinates.", "mixture.whitening.")),
    "l2": (HeadSettings(dim=8, coordinates="sphere"), ("head.projection.", "head.projection.0.")),
    "pole": (HeadSettings(dim=8, projection="batch_norm", coordinates="pole"), ("", "")),
    "linear": (HeadSettings(dim=8, coordinates="plain"), ("", "")),
    "reference": (HeadSettings(dim=8, projection="reference", coordinates="sphere"), ("", "")),
}


@pytest.mark.parametrize("old", OLD_NAMES)
def test_a_folder_in_old_words_is_the_same_network(old, tmp_path):
    """Round trip: written today, put into the words and names of earlier versions, read, written again."""
    settings, (name, old_name) = OLD_NAMES[old]
    torch.manual_seed(0)
    model = gmmseg.build("tiny_unet", num_classes=3, head=settings).eval()
    model.save_pretrained(tmp_path / "old")
    config = json.loads((tmp_path / "old" / CONFIG_FILE).read_text())
    del config["recipe"]["head"]["coordinates"]
    config["recipe"]["head"]["projection"] = old
    (tmp_path / "old" / CONFIG_FILE).write_text(json.dumps(config))
    state = load_file(tmp_path / "old" / WEIGHTS_FILE)
    renamed = {key.replace(name, old_name) if name else key: value for key, value in state.items()}
    save_file(renamed, tmp_path / "old" / WEIGHTS_FILE)
    assert bool(name) == (set(renamed) != set(state))
    again = gmmseg.from_pretrained(tmp_path / "old")
    with torch.no_grad():
        assert torch.equal(again(IMAGES).logits, model(IMAGES).logits)
    again.save_pretrained(tmp_path / "new")
    assert json.loads((tmp_path / "new" / CONFIG_FILE).read_text())["recipe"]["head"] == asdict(settings)
    assert set(load_file(tmp_path / "new" / WEIGHTS_FILE)) == set(state)


@pytest.mark.parametrize(
    ("file", "head"),
    [("scenes", ("linear", "whitened")), ("paper", ("linear", "plain")), ("held", ("reference", "sphere"))],
)
def test_saved_configurations_load_and_are_written_in_present_words(file, head, tmp_path):
    config = load_config(FORMAT1 / f"{file}.yaml")
    assert (config.model.head.projection, config.model.head.coordinates) == head
    assert (config.em.covariance_decay, config.em.covariance_shrinkage) == (0.95, 0.1)
    (tmp_path / "new.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "new.yaml") == config
    assert "spread" not in (tmp_path / "new.yaml").read_text()


def test_old_keys_and_words_in_a_configuration_of_ones_own():
    old = parse_config(
        {"model": {"head": {"projection": "pole"}}, "em": {"spread_decay": 0.5, "unit_norm_means": True}}
    )
    assert (old.model.head.projection, old.model.head.coordinates) == ("batch_norm", "pole")
    assert old.em == replace(PRESETS["default"], covariance_decay=0.5)
    with pytest.raises(
        ConfigError, match=r"projection reference with coordinates whitened.*choose coordinates"
    ):
        parse_config({"model": {"head": {"projection": "reference", "coordinates": "whitened"}}})
    with pytest.raises(ConfigError, match=r"em\.covariance_decay"):
        parse_config({"em": {"spread_decay": 2}})


@pytest.mark.parametrize("file", ["scenes", "paper", "held"])
def test_a_run_begun_by_an_earlier_version_can_be_resumed(file):
    """The same settings in old words are no change of settings, and another head is still refused."""
    said: list[str] = []
    now = _dotted(config_tree(load_config(FORMAT1 / f"{file}.yaml")))
    before = _dotted(yaml.safe_load((FORMAT1 / f"{file}.yaml").read_text()))
    check_resumable(Path("step_8.pt"), before, now, said.append)
    assert not said
    other = {**now, "model.head.projection": "none"}
    with pytest.raises(CheckpointError, match=r"model\.head\.projection \w+ -> none"):
        check_resumable(Path("step_8.pt"), before, other, said.append)


def test_old_names_are_understood_in_a_checkpoint_and_in_its_average():
    expected = [
        "head.mixture.coordinates.basis",
        "module.head.mixture.coordinates.basis",
        "backbone.projection.0.weight",
    ]
    old = [
        "head.mixture.whitening.basis",
        "module.head.mixture.whitening.basis",
        "backbone.projection.0.weight",
    ]
    state = {name: torch.tensor(float(index)) for index, name in enumerate(old)}
    assert present_names(state, expected) == dict(zip(expected, state.values()))


def _dotted(tree: dict, prefix: str = "") -> dict:
    flat: dict = {}
    for key, value in tree.items():
        flat |= _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def test_results_written_before_are_read_compared_and_shown(tmp_path):
    results = load_results(FORMAT1 / "results.json")
    stored = json.loads((FORMAT1 / "results.json").read_text())
    assert results["sets"].keys() == stored["sets"].keys()
    miou = stored["sets"]["scenes/test"]["metrics"]["miou"]
    assert f"{100 * miou:.2f}" in compare([results]).markdown()
    write_report([FORMAT1 / "results.json"], [], tmp_path / "report.html")
    assert f"{100 * miou:.1f}" in (tmp_path / "report.html").read_text()
