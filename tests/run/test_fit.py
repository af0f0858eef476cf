"""Mixtures after the fact: one look at each image, labels untouched, the fused score once calibrated."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import gmmseg
from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import ScenesAnomaly
from gmmseg.data.scenes import Scenes
from gmmseg.inference import Predictor, calibrate
from gmmseg.inference.readings import Density, Energy
from gmmseg.labels import IGNORE
from gmmseg.models import InferenceSettings
from gmmseg.models.calibration_file import FUSED
from gmmseg.models.density import maps_of_density
from gmmseg.models.features import extracted
from gmmseg.models.pairing import shrink_labels
from gmmseg.run import fit

SIZE = (48, 64)


class Counted(Scenes):
    """Scenes that note which images were read."""

    def __init__(self, split, **words):
        super().__init__(split, **words)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


@pytest.fixture
def train_set():
    return Counted("train", size=SIZE, length=4)


@pytest.fixture
def val_set():
    return Scenes("val", size=SIZE, length=3)


def model_of(head="softmax", name="tiny_unet"):
    torch.manual_seed(0)
    model = gmmseg.build(name, num_classes=10, head="softmax").eval()
    if head == "softmax":
        return model
    return run.fit_head(model, Scenes("train", size=SIZE, length=2), 1, passes=1)[0].eval()


@pytest.mark.parametrize("ways", [run.fit_density, run.fit_head])
def test_each_image_is_read_once(train_set, ways):
    fitted, history = ways(model_of(), train_set, 2, passes=6)
    assert train_set.read == [0, 1, 2, 3]
    assert len(history) > 1
    assert history[-1] > history[0]
    assert fitted.is_fitted


def cells_of(model, dataset):
    points, labels = [], []
    for index in range(len(dataset)):
        sample = dataset[index]
        with torch.no_grad():
            features, maps = extracted(model.features, model.normalise(sample.image[None].float() / 255))
        maps = maps_of_density(model.features, features, maps, sample.image.shape[-2:])
        points.append(maps[0].flatten(1).T)
        labels.append(shrink_labels(sample.labels[None].long(), maps.shape[-2:]).flatten())
    points, labels = torch.cat(points), torch.cat(labels)
    return points[labels != IGNORE].double().numpy(), labels[labels != IGNORE].numpy()


def test_whitening_is_that_of_all_labelled_cells(train_set):
    model = model_of()
    fitted, _ = run.fit_density(model, train_set, 2, passes=1)
    points, labels = cells_of(model, train_set)
    np.testing.assert_allclose(
        fitted.density.coordinates.centre.numpy(), points.mean(0), rtol=1e-3, atol=1e-5
    )
    within = sum(
        (labels == c).sum() * np.cov(points[labels == c], rowvar=False, bias=True) for c in np.unique(labels)
    ) / len(points)
    variances = within.diagonal()
    deviations = np.sqrt(variances + 1e-6 * variances.mean())
    values, vectors = np.linalg.eigh(within / np.outer(deviations, deviations))
    shrunk = values + 0.5 * (variances / deviations**2).mean()
    basis = (vectors / np.sqrt(shrunk)) @ vectors.T / deviations[:, None]
    found = fitted.density.coordinates.basis.numpy()
    np.testing.assert_allclose(found, basis, atol=2e-3 * np.abs(basis).max())


@pytest.mark.parametrize("head", ["softmax", "gmm"])
@pytest.mark.parametrize("name", ["tiny_unet", "timm:test_resnet", "smp:Unet/resnet18"])
def test_labels_and_posterior_are_bit_equal_and_the_density_is_kept(train_set, tmp_path, head, name):
    model = model_of(head, name)
    fitted, _ = run.fit_density(model, train_set, 2, passes=1)
    assert run.can_be_split(model) == (not name.startswith("smp"))
    fitted.save_pretrained(tmp_path)
    loaded = run.open_model(tmp_path)
    image = Scenes("val", size=SIZE, length=1)[0].image
    before, after = Predictor(model).predict(image), Predictor(loaded).predict(image)
    assert torch.equal(before.labels, after.labels)
    assert torch.equal(before.posterior, after.posterior)
    assert torch.equal(before.anomaly, after.anomaly), "not calibrated: the map it always had"
    assert model.density is None


@pytest.mark.parametrize("head", ["softmax", "gmm"])
@pytest.mark.parametrize(
    "looks", [InferenceSettings(), InferenceSettings(None, 32, 16), InferenceSettings(short_side=32)]
)
def test_a_calibrated_one_shows_the_fused_score(train_set, val_set, tmp_path, head, looks):
    model = model_of(head)
    model.inference = looks
    fitted, _ = run.fit_density(model, train_set, 2, passes=2)
    fitted.save_pretrained(tmp_path)
    calibration = run.calibrate_folders([tmp_path], val_set)[tmp_path]
    loaded = run.open_model(tmp_path)
    assert loaded.calibration == calibration
    assert calibration.score == FUSED
    predictor, parts = Predictor(loaded), (Energy(), Density())
    energy, density = calibration.moments["energy"], calibration.moments["density"]
    scores = [predictor.scores(val_set[index], parts)[0] for index in range(len(val_set))]
    fused = [
        (each[0] - energy.mean) / energy.deviation + (each[1] - density.mean) / density.deviation
        for each in scores
    ]
    shown = [predictor.predict(val_set[index].image).anomaly for index in range(len(val_set))]
    torch.testing.assert_close(torch.stack(shown), torch.stack(fused), rtol=1e-3, atol=1e-3)
    known = torch.stack([val_set[index].labels != IGNORE for index in range(len(val_set))])
    share = float((torch.stack(shown)[known] > calibration.threshold).float().mean())
    assert 0.03 < share <= 0.05
    entry = run.evaluate(loaded, "fused", [ScenesAnomaly("val", size=SIZE, length=4)])
    assert {"density", "fused"} <= set(entry["settings"]["score_names"])


def test_moments_are_those_of_the_known_cells(train_set, val_set):
    fitted, _ = run.fit_density(model_of(), train_set, 2, passes=2)
    calibration = calibrate(Predictor(fitted), val_set)
    values = []
    for index in range(0, len(val_set), 5):  # the others carry the promise
        sample = val_set[index]
        with torch.no_grad():
            output = fitted(sample.image[None].float() / 255)
        known = shrink_labels(sample.labels[None].long(), output.logits.shape[-2:]) != IGNORE
        values.append(torch.stack([Energy()(output)[known], Density()(output)[known]]))
    for name, each in zip(("energy", "density"), torch.cat(values, dim=1).double().numpy()):
        assert calibration.moments[name].mean == pytest.approx(each.mean(), rel=1e-5)
        assert calibration.moments[name].deviation == pytest.approx(each.std(), rel=1e-4)


def test_what_was_calibrated_stays_until_calibrated_again(train_set, val_set):
    model = model_of()
    model.calibration = calibrate(Predictor(model), val_set)
    fitted, _ = run.fit_density(model, train_set, 1, passes=1)
    image = val_set[0].image
    before, after = Predictor(model).predict(image), Predictor(fitted).predict(image)
    assert torch.equal(before.posterior, after.posterior)
    assert fitted.calibration.thresholds == model.calibration.thresholds
    fitted.calibration = calibrate(Predictor(fitted), val_set)
    again, _ = run.fit_density(fitted, train_set, 1, passes=1)
    assert again.calibration is None, "its moments are of another density"


def test_the_functions_of_the_package_are_those_of_the_commands(train_set, val_set):
    model, words = model_of(), {"components": 2, "passes": 2}
    fitted = gmmseg.fit(model, train_set, **words)
    expected, _ = run.fit_density(model, train_set, 2, passes=2)
    image = val_set[0].image
    fitted.calibration = gmmseg.calibrate(fitted, val_set)
    expected.calibration = calibrate(Predictor(expected), val_set)
    assert fitted.calibration.thresholds == expected.calibration.thresholds
    shown = [Predictor(each).predict(image).anomaly for each in (fitted, expected)]
    assert torch.equal(*shown)
    assert gmmseg.fit(model, train_set, on="features", **words).mixture is not None
    with pytest.raises(ValueError, match="on=decoder: choose backbone or features"):
        gmmseg.fit(model, train_set, on="decoder")


def test_a_calibration_looks_at_images_as_the_given_predictor_does(val_set):
    model = model_of()
    small = calibrate(Predictor(model, short_side=24), val_set)
    assert small.inference.short_side == 24
    assert gmmseg.calibrate(model, val_set).inference == model.inference


def test_fused_without_its_moments_and_density_without_one_are_refused(train_set):
    fitted, _ = run.fit_density(model_of(), train_set, 1, passes=1)
    with pytest.raises(ValueError, match="gmmseg calibrate"):
        run.make_scores(fitted, ["fused"])
    anomalies = ScenesAnomaly("val", size=SIZE, length=1)
    with pytest.raises(ValueError, match="gmmseg fit"):
        run.evaluate(model_of(), "plain", [anomalies], run.Judging(["density"]))


@pytest.mark.parametrize("ways", [run.fit_density, run.fit_head])
def test_other_classes_and_unlabelled_sets_are_refused(train_set, ways):
    torch.manual_seed(0)
    other = gmmseg.build("tiny_unet", num_classes=3, head="softmax")
    with pytest.raises(ValueError, match="10 classes, the model 3"):
        ways(other, train_set)
    with pytest.raises(ValueError, match="marks what is unknown"):
        ways(model_of(), ScenesAnomaly("val", size=SIZE, length=1))


def test_training_starts_without_a_density(train_set, tmp_path):
    fitted, _ = run.fit_density(model_of(), train_set, 1, passes=1)
    fitted.label_names = train_set.label_space.names
    fitted.save_pretrained(tmp_path)
    config = load_config("scenes", [f"model.name={tmp_path}", "model.head=softmax"])
    assert run.make_segmenter(config, train_set).density is None


@pytest.mark.parametrize("ways", [run.fit_density, run.fit_head])
def test_a_network_of_queries_is_refused(train_set, ways):
    model = model_of()
    model.points_are_cells = False
    with pytest.raises(ValueError, match=r"classifies queries.*give a network that classifies cells"):
        ways(model, train_set)
    assert train_set.read == []


def test_a_set_without_a_label_is_refused(train_set):
    class Blank(Counted):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return replace(sample, labels=torch.full_like(sample.labels, IGNORE))

    with pytest.raises(ValueError, match="scenes, split train: no labelled cell"):
        run.fit_density(model_of(), Blank("train", size=SIZE, length=2))


def test_fewer_cells_are_kept_where_they_would_take_too_much(train_set, monkeypatch):
    monkeypatch.setattr(fit, "MOST_KEPT_BYTES", 4 * 208 * 10 * 7)
    _, kept = fit._statistics(fit.maps_viewer(model_of()), train_set, None)
    assert kept.most == 7
    assert kept.points_and_labels()[1].bincount().max() == 7


WORKER = """
import sys
import torch
import torch.distributed as dist
import gmmseg
from gmmseg import run
from gmmseg.data.scenes import Scenes
dist.init_process_group("gloo")
torch.manual_seed(0)
model = gmmseg.build("tiny_unet", num_classes=10, head="softmax").eval()
for length in (3, 1):  # unevenly split; of one image, a process has none
    train = Scenes("train", size=(48, 64), length=length)
    for way in (run.fit_density, run.fit_head):
        fitted, history = way(model, train, 2, passes=3)
        state = {"history": history, **fitted.state_dict()}
        torch.save(state, f"{sys.argv[1]}/{way.__name__}-{length}-{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


def test_two_processes_fit_what_one_fits(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    pair = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *pair, str(tmp_path / "worker.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    for length in (3, 1):
        train = Counted("train", size=SIZE, length=length)
        for way in (run.fit_density, run.fit_head):
            fitted, history = way(model_of(), train, 2, passes=3)
            first, second = (torch.load(tmp_path / f"{way.__name__}-{length}-{rank}.pt") for rank in (0, 1))
            assert first.pop("history") == second.pop("history") == pytest.approx(history, rel=1e-5)
            for name, value in fitted.state_dict().items():
                assert torch.equal(first[name], second[name]), name
                torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_weights_of_one_backbone_share_a_density_and_its_one_look_at_the_images(train_set, tmp_path):
    """What training does with best/ and final/ when the backbone is frozen, and when it is not."""
    model = model_of("gmm")
    model.save_pretrained(tmp_path / "best")
    model.head.link.requires_grad_(False)
    with torch.no_grad():
        model.head.mixture.means.add_(0.1)
    model.save_pretrained(tmp_path / "final")
    parts = [tmp_path / "best", tmp_path / "final"]
    assert fit.add_densities(parts, train_set, "cpu") is None
    assert train_set.read == [0, 1, 2, 3]
    best, final = (run.open_model(part) for part in parts)
    for name, value in best.density.state_dict().items():
        assert torch.equal(value, final.density.state_dict()[name])
    assert not torch.equal(best.mixture.means, final.mixture.means), "each keeps its own head"
    alone, _ = run.fit_density(model, train_set)
    assert torch.equal(alone.density.mixture.means, final.density.mixture.means)
    with torch.no_grad():
        next(model.backbone.parameters()).add_(0.1)
    model.save_pretrained(tmp_path / "final")
    train_set.read.clear()
    fit.add_densities(parts, train_set, "cpu")
    assert train_set.read == 2 * [0, 1, 2, 3], "another backbone, other maps"


@pytest.mark.parametrize(
    ("name", "most", "reason"),
    [("smp:Unet/resnet18", 1024, "cannot be split"), ("tiny_unet", 207, "with 208 channels it would cost")],
)
def test_where_training_makes_no_density_the_weights_stay_as_they_are(
    train_set, tmp_path, monkeypatch, name, most, reason
):
    monkeypatch.setattr(fit, "MOST_CHANNELS", most)
    model_of("softmax", name).save_pretrained(tmp_path / "best")
    before = {file.name: file.read_bytes() for file in (tmp_path / "best").iterdir()}
    assert reason in fit.add_densities([tmp_path / "best"], train_set, "cpu")
    assert {file.name: file.read_bytes() for file in (tmp_path / "best").iterdir()} == before
    assert train_set.read == []
