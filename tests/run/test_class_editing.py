"""A class added from masks, through Python and through the command line; nothing lost when it is refused."""

import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import gmmseg
from gmmseg import run
from gmmseg.cli import app
from gmmseg.data import open_dataset
from gmmseg.data.class_masks import open_class_masks
from gmmseg.labels import IGNORE
from gmmseg.models.saving import digest
from gmmseg.run.class_editing import MOST_LOST

COLOURS = np.array([(90, 140, 230), (60, 150, 60), (220, 60, 40)])


def write_set(root, split, count, names, seed, ball=2):
    """Sky over grass with a red ball; the label of the ball is ``ball``."""
    rng = np.random.default_rng(seed)
    for part in ("images", "labels"):
        (root / part / split).mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text("\n".join(names))
    for index in range(count):
        labels = np.zeros((32, 48), np.uint8)
        labels[rng.integers(10, 20) :] = 1
        top, left = rng.integers(2, 18), rng.integers(2, 34)
        labels[top : top + 12, left : left + 12] = 2
        image = np.clip(COLOURS[labels] + rng.normal(0, 12, (32, 48, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(root / "images" / split / f"{index}.png")
        labels[labels == 2] = ball
        Image.fromarray(labels).save(root / "labels" / split / f"{index}.png")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """model/ knows sky and grass; closed/ is labelled with those, open/ with the ball too."""
    root = tmp_path_factory.mktemp("world")
    write_set(root / "closed", "train", 6, ("sky", "grass"), 0, ball=IGNORE)
    write_set(root / "closed", "val", 3, ("sky", "grass"), 1, ball=IGNORE)
    write_set(root / "open", "train", 4, ("sky", "grass", "ball"), 2)
    write_set(root / "open", "val", 4, ("sky", "grass", "ball"), 3)
    shutil.copytree(root / "open" / "images" / "train", root / "images")
    (root / "masks").mkdir()
    for path in (root / "open" / "labels" / "train").iterdir():
        marked = (np.array(Image.open(path)) == 2).astype(np.uint8) * 255
        Image.fromarray(marked).save(root / "masks" / f"{path.name}.png")
    torch.manual_seed(0)
    plain = gmmseg.build("tiny_unet", class_names=("sky", "grass"), head="softmax").eval()
    plain.label_names, plain.colours = ("sky", "grass"), ((90, 140, 230), (60, 150, 60))
    plain.save_pretrained(root / "softmax")
    fitted, _ = run.fit_head(plain, open_dataset("folder", root / "closed", "train"), 2, passes=5)
    run_density, _ = run.fit_density(
        fitted.eval(), open_dataset("folder", root / "closed", "train"), 2, passes=3
    )
    run_density.save_pretrained(root / "with_density")
    fitted.save_pretrained(root / "model")
    return root


def open_world(world, folder="model"):
    return run.open_model(world / folder), open_class_masks(world / "images", world / "masks")


@pytest.mark.parametrize("folder", ["model", "with_density"])
@pytest.mark.parametrize("labelled", ["open", "closed", None])
def test_the_class_is_learned_and_costs_the_others_little(world, folder, labelled):
    model, masks = open_world(world, folder)
    before = digest(model)
    validation = open_dataset("folder", world / labelled, "val") if labelled else None
    added = run.add_class(model, "ball", masks, validation=validation)
    assert digest(model) == before
    assert added.cells == 36
    judged = run.add_class(model, "ball", masks, validation=open_dataset("folder", world / "open", "val"))
    assert judged.gain is not None
    assert judged.gain.new_iou > 0.5
    if labelled is None:
        assert added.gain is None
    else:
        assert added.gain.lost < MOST_LOST + 0.02  # found on cells, judged on pixels
        assert (added.gain.new_iou == added.gain.new_iou) == (labelled == "open")
    picture = torch.rand(3, 32, 48)
    with torch.no_grad():
        old, new = model(picture[None]), added.segmenter(picture[None])
    assert torch.equal(new.logits[:, :2], old.logits)
    if folder == "with_density":
        assert torch.equal(new.density_evidence[:, :2], old.density_evidence)


def test_labels_of_validation_are_matched_by_name(world, tmp_path):
    """The same images labelled with classes in another order give the same numbers."""
    model, masks = open_world(world)
    write_set(tmp_path, "val", 4, ("ball", "sky", "grass"), 3)
    for path in (tmp_path / "labels" / "val").iterdir():
        labels = np.array(Image.open(path))
        Image.fromarray(((labels + 1) % 3).astype(np.uint8)).save(path)
    gains = [
        run.add_class(model, "ball", masks, validation=open_dataset("folder", root, "val")).gain
        for root in (world / "open", tmp_path)
    ]
    assert gains[0] == gains[1]


def test_a_set_in_another_order_is_judged_in_the_models(world, tmp_path):
    """An added class is the last of a model, wherever a data set has it."""
    model, masks = open_world(world)
    run.add_class(model, "ball", masks).segmenter.save_pretrained(tmp_path / "model")
    write_set(tmp_path / "data", "val", 2, ("ball", "sky", "grass"), 3)
    dataset = open_dataset("folder", tmp_path / "data", "val")
    (judged,) = run.judged_sets(tmp_path / "model", dataset)
    assert judged.label_space.names == ("sky", "grass", "ball")
    assert torch.equal(judged[0].labels, torch.tensor([2, 0, 1], dtype=torch.uint8)[dataset[0].labels.long()])
    same = open_dataset("folder", world / "open", "val")
    assert run.judged_sets(tmp_path / "model", same) == [same]


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def add(world, out, *more, model="model", name="ball", images="images", masks="masks"):
    return invoke("add-class", world / model, "--name", name, "--images", world / images, "--masks",
                  world / masks, "--out", out, *more)  # fmt: skip


def test_the_command_reports_then_writes_a_calibrated_model(world, tmp_path):
    out = tmp_path / "out"
    result = add(world, out, "--data", f"folder:{world / 'open'}:val", "--components", "2")
    assert result.exit_code == 0, result.output
    assert "| sky |" in result.output
    assert "taken by ball" in result.output
    assert result.output.index("| sky |") < result.output.index("weights in")
    model = run.open_model(out)
    assert model.label_names == ("sky", "grass", "ball")
    assert model.calibration.data.classes == ("sky", "grass", "ball")
    for command in (("evaluate", out, "-d", f"folder:{world / 'closed'}:val", "--out", tmp_path / "r.json"),
                    ("calibrate", out, "-d", f"folder:{world / 'closed'}:val")):  # fmt: skip
        judged = invoke(*command)  # a set without the new class is matched by name
        assert judged.exit_code == 0, judged.output
    assert run.open_model(out).calibration is not None


def test_without_validation_images_the_next_command_is_named(world, tmp_path):
    result = add(world, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "nobody knows what it takes" in result.output
    assert f"next: gmmseg calibrate {tmp_path / 'out'}" in result.output
    assert run.open_model(tmp_path / "out").calibration is None


def test_images_without_a_mask_are_left_out_and_named(world, tmp_path):
    shutil.copytree(world / "masks", tmp_path / "masks")
    (tmp_path / "masks" / "1.png.png").unlink()
    result = add(world, tmp_path / "out", masks=tmp_path / "masks")
    assert result.exit_code == 0, result.output
    assert "1 images have no mask and are left out" in result.output
    assert "1.png" in result.output


def test_the_masks_of_predict_serve(world, tmp_path):
    """See it, then know it: what was unknown becomes a class."""
    shutil.copytree(world / "model", tmp_path / "model")
    invoke("calibrate", tmp_path / "model", "-d", f"folder:{world / 'closed'}:val")
    seen = invoke("predict", world / "images", "-m", tmp_path / "model", "--out", tmp_path / "seen")
    assert seen.exit_code == 0, seen.output
    result = add(world, tmp_path / "out", model=tmp_path / "model", masks=tmp_path / "seen" / "unknown")
    assert result.exit_code == 0, result.output
    assert run.open_model(tmp_path / "out").num_classes == 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"name": "Sky"}, "there is a class 'sky' already"),
        ({"model": "softmax"}, "has no density"),
        ({"masks": "images"}, "channels"),
        ({"images": "closed"}, "there are no images"),
        ({"images": "nowhere"}, "no such folder"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(world, tmp_path, words, reason):
    result = add(world, tmp_path / "out", **words)
    assert result.exit_code != 0
    assert re.search(reason, str(result.exception))
    assert not (tmp_path / "out").exists()


def test_weights_are_not_overwritten(world, tmp_path):
    shutil.copytree(world / "model", tmp_path / "out")
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    for command in (
        (
            "add-class",
            world / "model",
            "--name",
            "b",
            "--images",
            world / "images",
            "--masks",
            world / "masks",
        ),
        ("remove-class", world / "model", "--name", "sky"),
        ("rename-class", world / "model", "--name", "sky", "--to", "air"),
        ("merge-classes", world / "model", "--name", "sky", "--with", "grass"),
    ):
        result = invoke(*command, "--out", tmp_path / "out")
        assert "holds weights already" in str(result.exception)
        (tmp_path / "run" / "best").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "best" / "config.json").write_text("{}")
        assert "holds trained weights" in str(invoke(*command, "--out", tmp_path / "run").exception)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_a_file_is_no_folder_for_weights(world, tmp_path):
    (tmp_path / "out").write_text("mine")
    result = add(world, tmp_path / "out")
    assert "out: is a file; --out names the folder" in str(result.exception)
    assert (tmp_path / "out").read_text() == "mine"


def test_marks_smaller_than_a_cell_are_refused(world, tmp_path):
    (tmp_path / "masks").mkdir()
    model, _ = open_world(world)
    tiny = np.zeros((32, 48), np.uint8)
    tiny[0, 0] = 1
    Image.fromarray(tiny).save(tmp_path / "masks" / "0.png")
    masks = open_class_masks(world / "images", tmp_path / "masks")
    if model.stride == 1:
        assert run.add_class(model, "ball", masks).cells == 1
    else:
        with pytest.raises(ValueError, match="smaller than a cell"):
            run.add_class(model, "ball", masks)


def test_remove_rename_and_merge_from_the_command_line(world, tmp_path):
    data = f"folder:{world / 'open'}:val"
    added = add(world, tmp_path / "three", "--data", data)
    assert added.exit_code == 0, added.output
    steps = [
        ("rename-class", "three", ("--name", "ball", "--to", "toy"), ("sky", "grass", "toy")),
        ("merge-classes", "three", ("--name", "Grass", "--with", "ball", "--to", "ground", "-d", data),
         ("sky", "ground")),
        ("remove-class", "three", ("--name", "grass", "-d", data), ("sky", "ball")),
    ]  # fmt: skip
    for command, source, words, names in steps:
        result = invoke(command, tmp_path / source, *words, "--out", tmp_path / command)
        assert result.exit_code == 0, (command, result.output, result.exception)
        model = run.open_model(tmp_path / command)
        assert model.label_names == names
        assert model.calibration is not None


PAGES = ("new_classes.md", "explain.md")


def test_the_commands_of_the_pages_run_as_they_are_printed(world, tmp_path, monkeypatch):
    """On a folder of images called as in the pages: a pylon is a ball here."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world / "model", "runs/mine")
    shutil.copytree(world / "closed", "mydata")
    shutil.copytree(world / "images", "photos")
    shutil.copy("photos/0.png", "photos/street.png")
    shutil.copytree(world / "images", "cones/images")
    shutil.copytree(world / "masks", "cones/masks")
    assert invoke("calibrate", "runs/mine", "--data", "folder:mydata:val").exit_code == 0  # as train does
    docs = Path(__file__).parents[2] / "docs"
    commands = [
        line.partition("#")[0].split()
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", (docs / page).read_text(encoding="utf-8"), re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(commands) == 10
    for words in commands:
        assert words[0] == "gmmseg"
        result = invoke(*words[1:])
        assert result.exit_code == 0, (words, result.output, result.exception)
    assert run.open_model("runs/merged").label_names == ("sky", "ground")
    assert run.open_model("runs/accepted").label_names == ("sky", "grass", "cone")
    assert Path("explain.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--masks DIR, or --objects FILE with --accept"),
        (("--masks", "m", "--objects", "o", "--accept", "1"), "--masks DIR, or --objects FILE"),
        (("--objects", "o.json"), "with --accept"),
        (("--objects", "o.json", "--accept", "1,x"), "whole numbers such as 3,7,12"),
        (("--objects", "o.json", "--accept", "1"), r"o.json: cannot be read"),
    ],
)
def test_a_class_is_marked_in_one_way(world, tmp_path, words, message):
    command = ("add-class", world / "model", "--name", "ball", "--images", world / "images")
    result = invoke(*command, *words, "--out", tmp_path / "out")
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_example_learns_cars_without_training(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "new_class.py"
    gain = runpy.run_path(str(example))["main"](steps=120, images=5, out=tmp_path / "out")
    assert gain.new_iou > 0.1
    assert gain.lost < 0.02
    assert (tmp_path / "out" / "explain.html").is_file()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_explain_a_pixel_and_accept_objects(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    explained = runpy.run_path(str(examples / "explain.py"))["main"](["--out", str(tmp_path / "why")])
    assert {each.component for each in explained.exemplars} == {explained.component}
    assert (tmp_path / "why" / "explain.html").read_text().count("data:image/jpeg") == 2 + len(
        explained.exemplars
    )
    model = runpy.run_path(str(examples / "objects.py"))["main"](["--out", str(tmp_path / "objects")])
    assert model.label_names[-1] == "car"
