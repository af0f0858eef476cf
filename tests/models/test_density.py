"""A density beside the head: its numbers are SciPy's, and it changes nothing else."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import gmmseg
from gmmseg.mixture.class_statistics import ClassSample, ClassSums
from gmmseg.models import WeightsError
from gmmseg.models.density import CellDensity, DensitySettings, maps_of_density
from gmmseg.models.features import extracted

C, K, F = 3, 2, 4


def fitted_density(generator, classes=C, channels=F):
    labels = torch.randint(0, C, (600,), generator=generator)
    cells = torch.randn(600, channels, generator=generator) + 2.0 * labels[:, None]
    sums, kept = ClassSums(classes, channels), ClassSample(classes, channels, most=100)
    sums.update(cells, labels)
    kept.update(cells, labels, 0)
    density = CellDensity(classes, DensitySettings(K, channels)).eval()
    history = density.fit_(sums, kept, passes=5)
    return density, history


def test_evidence_is_scipys_on_the_same_points(generator):
    density, history = fitted_density(generator)
    assert history == sorted(history)
    maps = 3 * torch.randn(1, F, 5, 7, generator=generator)
    coordinates, mixture = density.coordinates, density.mixture
    rows = maps[0].flatten(1).T.numpy()
    white = (rows - coordinates.centre.numpy()) @ coordinates.basis.numpy()
    lifted = np.concatenate([white, np.full((35, 1), np.sqrt(F + 1))], axis=1)
    points = lifted / np.linalg.norm(lifted, axis=1, keepdims=True)
    expected = np.stack(
        [
            logsumexp(
                [
                    float(mixture.log_weights[c, k])
                    + multivariate_normal(mixture.means[c, k], np.diag(mixture.variances[c, k])).logpdf(
                        points
                    )
                    for k in range(K)
                ],
                axis=0,
            )
            for c in range(C)
        ]
    )
    np.testing.assert_allclose(density(maps)[0].flatten(1).numpy(), expected, rtol=1e-4, atol=1e-3)


def test_a_class_without_cells_vouches_for_nothing(generator):
    density, _ = fitted_density(generator, classes=C + 1)
    evidence = density(torch.randn(1, F, 2, 3, generator=generator))
    assert evidence[:, :C].isfinite().all()
    assert (evidence[:, C] == -torch.inf).all()


@pytest.mark.parametrize("name", ["tiny_unet", "timm:test_resnet", "timm:test_vit@1,5"])
@pytest.mark.parametrize("size", [(64, 96), (56, 72), (33, 50)])
def test_maps_have_a_cell_for_each_of_the_features_and_all_channels(name, size, generator):
    features = gmmseg.build(name, num_classes=C, head="softmax").features.eval()
    images = torch.rand(2, 3, *size, generator=generator)
    with torch.no_grad():
        found, backbone_maps = extracted(features, images)
        maps = maps_of_density(features, found, backbone_maps, size)
        assert torch.equal(found.main, features(images).main)
        assert maps.shape[-2:] == found.main.shape[-2:]
        assert maps.shape[1] == sum(each.shape[1] for each in features.backbone_maps(images))


def test_a_map_of_the_features_own_size_is_taken_as_it_is(generator):
    features = gmmseg.build("tiny_unet", num_classes=C, head="softmax").features.eval()
    images = torch.rand(1, 3, 32, 64, generator=generator)
    with torch.no_grad():
        maps = features.backbone_maps(images)
        joined = features.joined_maps(maps, (32, 64))
    assert torch.equal(joined[:, 16:48], maps[1])
    torch.testing.assert_close(joined[:, :16], torch.nn.functional.avg_pool2d(maps[0], 2))


@pytest.fixture
def segmenter(generator):
    segmenter = gmmseg.build("tiny_unet", num_classes=C, head="softmax").eval()
    segmenter.density, _ = fitted_density(generator, channels=208)
    return segmenter


def test_labels_stay_and_the_density_comes_back_from_disk(segmenter, tmp_path, generator):
    images = torch.rand(1, 3, 40, 56, generator=generator)
    segmenter.save_pretrained(tmp_path)
    loaded = gmmseg.from_pretrained(tmp_path)
    again, output = loaded(images), segmenter(images)
    assert torch.equal(again.logits, output.logits)
    assert torch.equal(again.density_evidence, output.density_evidence)
    assert loaded.density.settings == DensitySettings(K, 208)
    segmenter.density = None
    plain = segmenter(images)
    assert torch.equal(plain.logits, output.logits)
    assert plain == replace(output, logits=plain.logits, points=plain.points, density_evidence=None)


def test_training_does_not_pay_for_it(segmenter, generator):
    assert segmenter.train()(torch.rand(2, 3, 32, 32, generator=generator)).density_evidence is None


@pytest.mark.parametrize("entry", [7, {"components": 2}, {"components": 0, "channels": 208}])
def test_a_damaged_entry_is_refused_by_the_name_of_its_file(segmenter, tmp_path, entry):
    segmenter.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "density": entry}))
    with pytest.raises(WeightsError, match=r"config\.json: the entry density is not understood"):
        gmmseg.from_pretrained(tmp_path)
