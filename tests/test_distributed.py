"""The commands under torchrun, as the docs print them: several processes do what one does, once."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import typer
from PIL import Image
from torch.distributed.run import get_args_parser

import gmmseg
from gmmseg import cli, distributed, run
from gmmseg.data import open_dataset

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "src/gmmseg/cli.py", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"torchrun .*?(?:[^\\`](?=\n)|(?=`|\. ))", re.DOTALL)
SMALL = (
    "model.name=tiny_unet model.weights=null data.crop=[32,48] data.workers=0 train.steps=2 "
    "train.batch_size=2 train.backbone_multiplier=1 train.log_every=1 --out runs/mine"
)


def launched(command, folder):
    """Run a torchrun command line in ``folder`` on the CPU; what it printed and returned."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    words = shlex.split(command)
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with ``mydata`` and a run made by the quickstart's own command; and what that printed."""
    folder = tmp_path_factory.mktemp("launch")
    rng = np.random.default_rng(0)
    (folder / "mydata").mkdir()
    (folder / "mydata/classes.txt").write_text("left\nright")
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (folder / "mydata" / part / split).mkdir(parents=True)
        for index in range(5):
            labels = np.zeros((40, 56), np.uint8)
            labels[:, 20 + 3 * index :] = 1
            image = (labels[..., None] * 90 + rng.integers(0, 120, (40, 56, 3))).astype(np.uint8)
            Image.fromarray(image).save(folder / "mydata/images" / split / f"{index}.png")
            Image.fromarray(labels).save(folder / "mydata/labels" / split / f"{index}.png")
    lines = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8").splitlines()
    (command,) = (line for line in lines if line.startswith("torchrun --standalone"))
    done = launched(f"{command} {SMALL}", folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_documented_command_trains_one_run_in_two_processes(trained):
    folder, done = trained
    assert done.stdout.count("best weights in runs/mine/best") == 1
    log = [json.loads(line) for line in (folder / "runs/mine/log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if entry["kind"] == "train"] == [1, 2]
    assert gmmseg.from_pretrained(folder / "runs/mine/final").calibration.threshold is not None


def test_calibration_finds_in_two_processes_what_one_finds(trained, tmp_path):
    folder, _ = trained
    shutil.copytree(folder / "runs/mine/final", tmp_path / "weights")
    alone = run.calibrate(tmp_path / "weights", open_dataset("folder", folder / "mydata", "val"))
    (expected,) = alone.values()
    # `train` has done so in its two processes, with five images split unevenly.
    found = gmmseg.from_pretrained(folder / "runs/mine/final").calibration
    assert (found.thresholds, found.quantiles) == (expected.thresholds, expected.quantiles)
    assert found.false_alarms == expected.false_alarms  # bit for bit
    assert found.false_alarms["image"].images == 4  # one of five weighs the parts of the score
    assert (found.weights, found.data) == (expected.weights, expected.data)
    assert found.data.images == 5
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-9)
    assert found.typical == pytest.approx(expected.typical, rel=1e-9)


def test_two_processes_predict_every_file_once(trained):
    folder, _ = trained
    shutil.copytree(folder / "mydata/images/val", folder / "photos")
    (folder / "photos/2b.png").write_bytes(b"no image")
    command = "torchrun --standalone --nproc-per-node 2 -m gmmseg.cli predict photos --model runs/mine"
    done = launched(command, folder)
    assert done.stdout.count("5 done, in predictions") == 1, done.stderr
    assert done.stderr.count("not done: 2b.png") == 1
    assert done.returncode != 0
    assert len(list((folder / "predictions/labels").iterdir())) == 5


SHELL_WORDS = {"${SET}_${NET}": "ade20k_fcn_resnet101", "${ROOT[$SET]}": "/data", "$PRESET": "paper"}
"""Variables of a loop in the docs, each with a value that it takes."""


def documented():
    return [
        pytest.param(found.replace("\\\n", " "), id=f"{page.name}-{number}")
        for page in PAGES
        for number, found in enumerate(COMMAND.findall(page.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize("command", documented())
def test_every_documented_launch_is_one_that_torchrun_and_the_command_line_know(command):
    for word, example in SHELL_WORDS.items():
        command = command.replace(word, example)
    words = shlex.split(command)
    given = get_args_parser().parse_args([word if word not in ("N", "R") else "1" for word in words[1:]])
    assert (given.training_script, given.module) == ("gmmseg.cli", True)
    arguments = given.training_script_args
    if arguments[1] in ("CONFIG", "..."):
        return
    if arguments[0] != "train":
        known = typer.main.get_command(cli.app).get_command(None, arguments[0])
        known.make_context(arguments[0], arguments[1:])  # which refuses what it does not know
        return
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["gmmseg", *arguments, "--print-config"]),
        redirect_stdout(output),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    assert not left.value.code
    assert "steps:" in output.getvalue()


def test_every_launch_in_the_docs_is_looked_at():
    assert len(documented()) == 8
    assert not any("accelerate launch -" in page.read_text(encoding="utf-8") for page in PAGES)


def test_what_is_made_before_the_processes_meet_is_still_said_by_one(monkeypatch):
    said = []
    say = distributed.said_once(said.append)
    say("alone")
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    say("of the second process")
    assert said == ["alone"]
