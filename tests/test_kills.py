"""A run killed again and again arrives at the very files of a run left alone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from gmmseg.data.scenes import Scenes

KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from gmmseg import run
from gmmseg.config import load_config

out, wanted, config = Path(sys.argv[1]), int(sys.argv[2]), load_config("folder", json.loads(sys.argv[3]))


def start(folder):
    # A child of this process: it need not load torch again, which would take longer than its life.
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        try:
            run.train(config, folder, resume=folder, cpu=True)
        except BaseException as error:
            (out / "error.txt").write_text(repr(error))
            os._exit(1)
        os._exit(0)
    return child


def wait(child, seconds):
    # The exit code, or None when the child had to be killed after so long.
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return None if os.waitpid(child, 0)[1] == signal.SIGKILL else 0


began = time.monotonic()
assert wait(start(out / "whole"), 600) == 0
length = time.monotonic() - began
kills, runs, torn, draw = 0, 0, 0, random.Random(0)
while kills < wanted:
    runs += 1
    code = None
    while code is None:
        folder = out / f"killed{runs}"
        code = wait(start(folder), draw.uniform(0.02, 0.5 * length))
        kills += code is None
        torn += any(folder.rglob(".writing_*"))
    assert code == 0, (out / "error.txt").read_text()
print(json.dumps({"kills": kills, "while_writing": torn, "runs": runs, "seconds": time.monotonic() - began}))
"""

SETTINGS = [
    "data.crop=[24,32]", "data.workers=0", "data.balanced=true", "model.name=tiny_unet",
    "model.weights=null", "em.reseed=true", "train.steps=60", "train.batch_size=4",
    "train.backbone_multiplier=1", "train.warmup_steps=5", "train.ema=0.9", "train.softmax_steps=20",
    "train.save_every=2", "train.validate_every=10", "train.log_every=1",
]  # fmt: skip


def write_data(root):
    """Twenty images to train on, so that an epoch has five steps, and three to validate with."""
    (root / "classes.txt").parent.mkdir()
    (root / "classes.txt").write_text("\n".join(Scenes("train").label_space.names))
    for split, count in (("train", 20), ("val", 3)):
        scenes = Scenes(split, size=(24, 32), length=count)
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True)
        for index in range(count):
            image = scenes[index].image.permute(1, 2, 0).numpy()
            Image.fromarray(image).save(root / "images" / split / f"{index}.png")
            Image.fromarray(scenes[index].labels.byte().numpy()).save(
                root / "labels" / split / f"{index}.png"
            )


def results(folder):
    """What a run leaves, without the times in its log."""
    files = {
        f"{part}/{name}": (folder / part / name).read_bytes()
        for part in ("best", "final")
        for name in ("model.safetensors", "config.json")
    }
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    timed = ("time", "images_per_second", "em_seconds")
    steps = [{key: value for key, value in entry.items() if key not in timed} for entry in log]
    kept = [json.loads((folder / part / "calibration.json").read_text()) for part in ("best", "final")]
    calibrations = [{key: value for key, value in each.items() if key not in timed} for each in kept]
    return {
        **files,
        "calibrations": calibrations,
        "log": steps,
        "litter": [str(each) for each in folder.rglob(".*")],
    }


@pytest.mark.slow
def test_a_run_killed_again_and_again_equals_one_left_alone(tmp_path):
    """GMMSEG_KILLS sets how many SIGKILLs, 200 without it; each hits a child at a random moment."""
    write_data(tmp_path / "data")
    settings = [*SETTINGS, f"data.root={tmp_path / 'data'}"]
    words = [str(tmp_path), os.environ.get("GMMSEG_KILLS", "200"), json.dumps(settings)]
    done = subprocess.run([sys.executable, "-c", KILLER, *words], check=True, capture_output=True, text=True)
    print(done.stdout)
    expected = results(tmp_path / "whole")
    assert not expected["litter"]
    for number in range(json.loads(done.stdout.splitlines()[-1])["runs"]):
        assert results(tmp_path / f"killed{number + 1}") == expected


@pytest.mark.slow
def test_two_processes_of_which_one_was_killed_arrive_at_the_same_weights(tmp_path):
    write_data(tmp_path / "data")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "gmmseg.cli", "train", "folder", *SETTINGS, f"data.root={tmp_path / 'data'}", "--cpu"]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, timeout=300)
    folder = tmp_path / "killed"
    with subprocess.Popen([*command, "--out", str(folder)]) as launcher:
        while launcher.poll() is None and not list(folder.glob("checkpoints/step_000000[12]?.pt")):
            time.sleep(0.01)
        os.kill(json.loads((folder / ".lock").read_text())["pid"], signal.SIGKILL)
    assert launcher.returncode != 0
    subprocess.run([*command, "--out", str(folder), "--resume"], check=True, timeout=300)
    assert results(folder) == results(tmp_path / "whole")
