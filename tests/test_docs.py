"""Every Python block in README and docs runs, and so do the commands of pages named here."""

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
    """A folder with the model and the data that the pages speak of: runs/mine and 100 images in mydata."""
    rng = np.random.default_rng(0)
    for part in ("images", "labels"):
        (tmp_path / "mydata" / part / "val").mkdir(parents=True)
    (tmp_path / "mydata/classes.txt").write_text("left\nright")
    for index in range(100):
        labels = (np.arange(24) > 4 + index % 16).astype(np.uint8)[None].repeat(16, 0)
        image = (labels[..., None] * 90 + rng.integers(0, 120, (16, 24, 3))).astype(np.uint8)
        Image.fromarray(image).save(tmp_path / f"mydata/images/val/{index:03d}.png")
        Image.fromarray(labels).save(tmp_path / f"mydata/labels/val/{index:03d}.png")
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


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
