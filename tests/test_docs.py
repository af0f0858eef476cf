"""Every Python block in README and docs runs, and so do the commands of pages named here."""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    command = [sys.executable, "-c", "\n".join(blocks(page))]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def made_ready(tmp_path, monkeypatch):
    """A folder with what the pages speak of: the model runs/mine, 100 images in mydata, 30 more in camera."""
    rng = np.random.default_rng(0)
    folders = [tmp_path / part for part in ("mydata/images/val", "mydata/labels/val", "camera")]
    for folder in folders:
        folder.mkdir(parents=True)
    (tmp_path / "mydata/classes.txt").write_text("left\nright")
    for index in range(130):
        labels = (np.arange(24) > 4 + index % 16).astype(np.uint8)[None].repeat(16, 0)
        image = (labels[..., None] * 90 + rng.integers(0, 120, (16, 24, 3))).astype(np.uint8)
        Image.fromarray(image).save(folders[0 if index < 100 else 2] / f"{index:03d}.png")
        if index < 100:
            Image.fromarray(labels).save(folders[1] / f"{index:03d}.png")
    torch.manual_seed(0)
    gmmseg.build("tiny_unet", num_classes=2, head="softmax").save_pretrained(tmp_path / "runs/mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_of_the_page_on_thresholds_run(made_ready, monkeypatch, capsys):
    page = (ROOT / "docs/thresholds.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).splitlines()
    assert len(lines) >= 6
    for line in lines:
        monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code, capsys.readouterr().err
    said = capsys.readouterr().out
    for words in ("at most 5 % of the known pixels", "at most 1 % of the known", "anything in at most 5 %"):
        assert f"{words}" in said
    # The last promise made is the one that predict and evaluate speak of.
    assert said.count("flags a region of at least 50 pixels in at most 5 % of new normal images") == 3
    arrays = np.load(made_ready / "pictures/raw/000.png.npz")
    assert arrays["p_values"].shape == arrays["anomaly"].shape == (16, 24)


def test_the_commands_of_the_page_on_monitoring_run(made_ready, monkeypatch, capsys):
    page = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL)).splitlines()
    assert len(lines) >= 6
    calibration = next(line for line in lines if "calibrate" in line)
    said = []
    for line in [calibration, *lines]:
        listing, _, command = line.rpartition(" | ")
        paths = sorted((made_ready / "camera").glob("*.png")) if listing else []
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(str, paths))))
        monkeypatch.setattr(sys, "argv", shlex.split(command, comments=True))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code, capsys.readouterr().err
        said.append(capsys.readouterr().out.splitlines())
    summary = json.loads(said[-1][-1])["summary"]
    assert (summary["images"], summary["alarms"], len(said[-1])) == (30, [], 31)
    found = json.loads((made_ready / "pictures/objects.json").read_text())
    assert len(found["images"]) == 100
    assert json.loads((made_ready / "watching.json").read_text())["images"] == 30


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
