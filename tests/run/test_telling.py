"""What a training run says before, while and after it runs; the commands it prints work."""

import json
import shlex

import pytest
import torch

from gmmseg.config import load_config
from gmmseg.run import train
from gmmseg.run.building import CLASS_IOU
from gmmseg.training.trainer import NEGATIVE_LOSS

SETTINGS = (
    "data.crop=[24,32]", "data.workers=0", "model.name=tiny_unet", "model.weights=null", "train.steps=4",
    "train.batch_size=2", "train.backbone_multiplier=1", "train.warmup_steps=2", "train.validate_every=2",
    "train.save_every=2", "train.log_every=1",
)  # fmt: skip


@pytest.fixture
def told(root, tmp_path, gmmseg_command):
    """A finished run in a folder with a space, and what it printed."""
    folder = tmp_path / "a run"
    code, out, err = gmmseg_command(
        "train",
        "folder",
        f"data.root={root}",
        *SETTINGS,
        "train.likelihood_weight=30",
        "--cpu",
        "--out",
        folder,
    )
    assert code == 0, err
    return folder, out


def test_a_run_says_what_it_trains_how_it_goes_and_what_comes_next(told, root, gmmseg_command):
    folder, out = told
    lines = out.splitlines()
    assert lines[0] == f"data        folder in {root}: 5 images to train on, 2 to validate with"
    assert lines[1] == "classes     2: sky, grass"
    assert lines[3] == "steps       4 of 2 images on cpu"
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    for entry in validations:
        assert f"step {entry['step']}: mIoU on the validation images {100 * entry['miou']:.1f} %" in out
        ious = [entry[f"{CLASS_IOU}{name}"] for name in ("sky", "grass")]
        assert sum(ious) / 2 == pytest.approx(entry["miou"])
    best = max(validations, key=lambda entry: entry["miou"])
    table = lines[
        lines.index(f"IoU of each class on the validation images (best/, of step {best['step']}):") :
    ]
    assert table[1].split() == ["sky", f"{100 * best[CLASS_IOU + 'sky']:.1f}", "%"]
    found = json.loads((folder / "best" / "calibration.json").read_text())
    value = found["thresholds"]["pixels"]["value"]
    assert (
        f"unknown is a score above {value:.4g}; the threshold is exceeded by 5 % of all known pixels"
        in table[4]
    )
    commands = [shlex.split(line) for line in table[6:8]]
    assert [words[:2] for words in commands] == [["gmmseg", "evaluate"], ["gmmseg", "predict"]]
    for words in commands:
        code, _, err = gmmseg_command(*words[1:])
        assert code == 0, err
    assert list((folder / "pictures").iterdir())


def test_a_loss_below_zero_is_explained_once(told):
    folder, out = told
    losses = [json.loads(line).get("loss") for line in (folder / "log.jsonl").read_text().splitlines()]
    assert sum(loss is not None and loss < 0 for loss in losses) > 1, losses
    assert out.count(NEGATIVE_LOSS) == 1


def test_a_set_without_files_and_without_validation_has_its_header_and_its_commands(tmp_path):
    said = []
    settings = [*SETTINGS, "train.steps=1", "data.validation_split=null", "preset=softmax"]
    train(load_config("scenes", settings), tmp_path / "run", cpu=True, tell=said.append)
    start, end = said
    assert "scenes: 600 images to train on, no validation" in start
    assert "softmax head" in start
    assert end.splitlines() == [
        "next:",
        f"  gmmseg evaluate {tmp_path / 'run'} --data scenes::SPLIT",
        f"  gmmseg predict PHOTOS -m {tmp_path / 'run'} --out {tmp_path / 'run' / 'pictures'}",
    ]


@pytest.mark.parametrize("started_on", ["gpu", "cpu"])
def test_a_resumed_run_keeps_the_settings_it_was_started_with(
    root, tmp_path, gmmseg_command, monkeypatch, started_on
):
    """A run started without a GPU goes on with the same settings where there is one, and vice versa."""
    own = tmp_path / "own.yaml"
    body = f"{{name: folder, root: {root}, crop: [24, 32], workers: 0}}"
    own.write_text(
        f"data: {body}\ntrain: {{steps: 1, batch_size: 2, validate_every: 9, warmup_steps: 0}}\n"
        "on_cpu:\n  train: {batch_size: 3}\n"
    )
    here = [started_on == "gpu"]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: here[0])
    words = ("train", own, "--out", tmp_path / "run")
    code, out, err = gmmseg_command(*words)
    assert code == 0, err
    size = {"gpu": 2, "cpu": 3}[started_on]
    assert f"1 of {size} images" in out
    assert ("machine=gpu takes the others" in out) == (started_on == "cpu")
    here[0] = not here[0]
    code, out, err = gmmseg_command(*words, "--resume", "train.steps=2")
    assert code == 0, err
    assert f"2 of {size} images on cpu, going on from step 1" in out
    assert load_config(tmp_path / "run" / "config.yaml").machine == started_on
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("*2.pt")
    _, out, _ = gmmseg_command(
        *words[:2], "--out", tmp_path / "new", "--resume-from", checkpoint, "train.steps=3"
    )
    assert f"3 of {size} images on cpu, going on from step 2" in out
    other = {"gpu": "cpu", "cpu": "gpu"}[started_on]
    code, _, err = gmmseg_command(*words, "--resume", f"machine={other}")
    assert code == 1
    assert "settings that cannot change on the way: train.batch_size" in err


def test_predict_names_a_missing_image_before_it_looks_for_the_model(tmp_path, gmmseg_command):
    code, _, err = gmmseg_command("predict", tmp_path / "nowhere.jpg", "--model", tmp_path / "no model")
    assert code == 1
    assert "nowhere.jpg: no such file or folder" in err
