"""The index against a loop over all cells, and the command from one end to the other."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import gmmseg
from gmmseg import run
from gmmseg.cli import app
from gmmseg.config import load_config
from gmmseg.data import open_dataset
from gmmseg.inference.windows import pad
from gmmseg.labels import IGNORE
from gmmseg.models.pairing import shrink_labels


@pytest.fixture(scope="module")
def models(root, tmp_path_factory):
    """A fitted model and a softmax model of sky and grass."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    plain = gmmseg.build("tiny_unet", class_names=("sky", "grass"), head="softmax").eval()
    plain.label_names = ("sky", "grass")
    plain.save_pretrained(place / "softmax")
    run.fit_head(plain, open_dataset("folder", root, "train"), 2, passes=4)[0].save_pretrained(place / "gmm")
    return place


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_nearest_cells_of_each_component_one_of_an_image(root, models):
    model, data = run.open_model(models / "gmm"), open_dataset("folder", root, "train")
    found = run.find_exemplars(model, data, 2)
    best = {}
    for index in range(len(data)):
        sample = data[index]
        image, known = pad(sample.image[None].float() / 255, 32, 32), torch.full((1, 32, 32), IGNORE)
        known[:, :24] = sample.labels
        with torch.no_grad():
            output = model(image)
        labels = shrink_labels(known, output.points.shape[-2:])[0]
        for c in range(2):
            for k in range(2):
                offsets = output.points[0] - model.mixture.means[c, k, :, None, None]
                distance = (offsets.square() / model.mixture.variances[c, k, :, None, None]).sum(0).sqrt()
                best.setdefault((c, k), []).append((float(distance[labels == c].min()), sample.name))
    for key, every in best.items():
        own = [each for each in found if (each.label, each.component) == key]
        expected = sorted(every)[:2]
        assert [each.image for each in own] == [name for _, name in expected]
        assert [each.distance for each in own] == pytest.approx([value for value, _ in expected], rel=1e-3)
    for each in found:
        assert each.crop.startswith(b"\xff\xd8\xff")
        assert 0 <= each.x < 32
        assert 0 <= each.y < 24


def test_build_then_explain(root, models, tmp_path):
    image = root / "images" / "val" / "0.png"
    before = invoke("explain", models / "gmm", image, "--at", "3,20", "--out", tmp_path / "a.html")
    assert before.exit_code == 0, before.output
    assert "--build --data" in before.output
    built = invoke("explain", models / "gmm", "--build", "--data", f"folder:{root}")
    assert built.exit_code == 0, built.output
    after = invoke("explain", models / "gmm", image, "--at", "3,20", "--out", tmp_path / "b.html")
    assert after.exit_code == 0, after.output
    assert "pixel 3,20: " in after.output
    assert "--build" not in after.output
    first, second = ((tmp_path / name).read_text() for name in ("a.html", "b.html"))
    assert second.count("data:image/jpeg") > first.count("data:image/jpeg") == 2
    (models / "gmm" / "exemplars.safetensors").write_bytes(b"hello")
    broken = invoke("explain", models / "gmm", image, "--at", "3,20", "--out", tmp_path / "c.html")
    assert "exemplars.safetensors: not an index" in str(broken.exception)
    assert not (tmp_path / "c.html").exists()
    (models / "gmm" / "exemplars.safetensors").unlink()


def test_a_renamed_class_keeps_its_training_pixels(root, models, tmp_path):
    shutil.copytree(models / "gmm", tmp_path / "old")
    assert invoke("explain", tmp_path / "old", "--build", "--data", f"folder:{root}").exit_code == 0
    renamed = invoke(
        "rename-class", tmp_path / "old", "--name", "sky", "--to", "air", "--out", tmp_path / "new"
    )
    assert renamed.exit_code == 0, renamed.output
    before, after = (
        run.exemplars_of(tmp_path / name, run.open_model(tmp_path / name)) for name in ("old", "new")
    )
    assert after == before
    assert {each.label for each in after} == {0, 1}


@pytest.mark.parametrize("head", ["gmm", "softmax"])
def test_training_writes_the_index_when_asked(root, tmp_path, head):
    settings = ["data.name=folder", f"data.root={root}", "model.name=tiny_unet", f"model.head.kind={head}"]
    settings += ["train.steps=2", "train.batch_size=2", "train.exemplars=true", "data.crop=[16,16]"]
    said = []
    run.train(load_config("scenes", settings), tmp_path / "run", cpu=True, say=said.append)
    index = run.exemplars_of(tmp_path / "run", run.open_model(tmp_path / "run"))
    if head == "gmm":
        assert {each.label for each in index} == {0, 1}
    else:
        assert index is None
        assert any("no index of training pixels" in each and "softmax" in each for each in said)


def test_a_softmax_model_is_explained_without_components(root, models, tmp_path):
    image = root / "images" / "val" / "0.png"
    result = invoke("explain", models / "softmax", image, "--at", "0,0", "--out", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "softmax head, no components" in result.output
    refused = invoke("explain", models / "softmax", "--build", "--data", f"folder:{root}")
    assert "no components" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("IMAGE",), "which pixel"),
        (("IMAGE", "--at", "3"), "a pixel is x,y"),
        (("IMAGE", "--at", "a,b"), "a pixel is x,y"),
        (("IMAGE", "--at", "3,99"), "outside the image"),
        ((), "name an image"),
        (("--build",), "belong together"),
        (("IMAGE", "--at", "1,1", "--data", "folder:x"), "belong together"),
    ],
)
def test_what_cannot_be_explained(root, models, tmp_path, words, reason):
    given = [root / "images" / "val" / "0.png" if word == "IMAGE" else word for word in words]
    result = invoke("explain", models / "gmm", *given, "--out", tmp_path / "a.html")
    assert result.exit_code != 0
    assert reason in str(result.exception)
    assert not (tmp_path / "a.html").exists()


def test_a_set_of_other_classes_is_refused(root, models, tmp_path):
    for part in ("images", "labels"):
        (tmp_path / part / "train").mkdir(parents=True)
        Image.fromarray(np.zeros((24, 32), np.uint8)).save(tmp_path / part / "train" / "0.png")
    (tmp_path / "classes.txt").write_text("cat\ndog")
    result = invoke("explain", models / "gmm", "--build", "--data", f"folder:{tmp_path}")
    assert "none of the model's classes" in str(result.exception)
