"""Every Python block in README and docs runs, and so do the shell blocks that small data suffice for."""

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
import yaml
from PIL import Image

import gmmseg
from gmmseg import cli
from gmmseg.config import load_config
from gmmseg.data.spaces import load_label_space

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"export.md"}  # its blocks need a model: tests/run/test_export.py runs them beside one
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


WITH_BLOCKS = [page for page in PAGES if blocks(page) and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
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
    arrays = np.load(made_ready / "pictures/raw/000.npz")
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


def anchors(page):
    """What the headings of a page are linked by, as hubs and the site make it."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(found), f"{page.name} links to {target}#{anchor}"


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """Small folders under the names that docs/datasets.md gives them."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    ids = np.random.default_rng(0).integers(0, 2, (6, 8), np.uint8)
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (6, 8, 3), np.uint8))
    folders = ("mymasks/train", "mydata/images/train", "myanomalies/images", "myanomalies/masks", "myparquet")
    for folder in folders:
        Path(folder).mkdir(parents=True)
    colours = np.array([(128, 64, 128), (70, 130, 180), (0, 0, 0)], np.uint8)
    Image.fromarray(colours[np.where(ids, 1, [0, 2] * 4)]).save("mymasks/train/a.png")
    Path("mydata/classes.txt").write_text("road 128 64 128\nopen sky 70 130 180\n")
    for place in ("mydata/images/train/a.jpg", "myanomalies/images/a.jpg"):
        image.save(place)
    Image.fromarray(ids).save("myanomalies/masks/a.png")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Image()})
    rows = datasets.Dataset.from_list([{"image": image, "label": Image.fromarray(ids)}], features=features)
    rows.to_parquet("myparquet/train.parquet")
    Path("myparquet/id2label.json").write_text('{"0": "road", "1": "sky"}')


def test_the_commands_of_the_data_page_work_as_printed(own_data, monkeypatch):
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    commands = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    assert len(commands) >= 5
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code, command


def _table(page, first_cell):
    """Rows of the table whose head begins with ``first_cell``, by their first cell."""
    lines = page[page.index(first_cell) :].split("\n\n")[0].splitlines()[2:]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_page_on_the_papers_tables_agrees_with_the_paper_and_the_configurations():
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    paper = json.loads((ROOT / "src/gmmseg/report/paper_results.json").read_text())["models"]
    sets = ("ade20k", "cityscapes", "coco_stuff_10k")
    names = {"fcn": "FCN", "deeplabv3plus": "DeepLabV3+", "ocrnet": "OCRNet"}
    names |= {"upernet": "UPerNet", "segformer": "SegFormer", "mask2former": "Mask2Former"}
    targets = _table(page, "| | ADE20K val |")
    assert len(targets) == 6
    for network, cells in targets.items():
        name = names[network.split("_")[0]]
        both = [[paper[each]["sets"][data]["miou"] for data in sets] for each in (name, f"GMMSeg-{name}")]
        assert cells == [f"{base} -> {ours}" for base, ours in zip(*both)]
    work = _table(page, "| | ADE20K |")
    for column, data in enumerate(sets):
        configs = {network: load_config(f"{data}_{network}") for network in targets}
        usual, masks = configs["fcn_resnet101"], configs["mask2former_swin_large"]
        assert f"{usual.train.steps:,} x {8 * usual.train.batch_size}" in work["steps x images"][column]
        if masks.train.steps != usual.train.steps:
            assert f"{masks.train.steps:,} x {8 * masks.train.batch_size}" in work["steps x images"][column]
        crops = [str(each.data.crop[0]) for each in (usual, masks)]
        assert work["crop"][column] == f"{crops[0]} (Mask2Former: {crops[1]})"
        head, em = usual.model.head, usual.em
        assert (em.memory, em.memory_float16) == ("queue", False)
        numbers = len(load_label_space(data)) * head.components * em.memory_size * head.dim
        assert work["memory of EM per process"][column] == f"{4 * numbers / 1e9:.1f} GB"


def test_the_hours_of_the_papers_cells_follow_from_their_operations():
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    counted = json.loads((ROOT / "benchmarks/results/work_of_cells.json").read_text())
    table = _table(page, "| operations, hours |")
    assert len(counted) == 3 * len(table) == 18
    for network, cells in table.items():
        for data, cell in zip(("ade20k", "cityscapes", "coco_stuff_10k"), cells):
            work, train = counted[f"{data}_{network}"], load_config(f"{data}_{network}").train
            assert work["images"] == train.steps * train.batch_size * train.accumulate * 8
            assert work["training"] == 3 * work["forward"] * work["images"]
            operations = work["training"] / 1e18
            assert cell == f"{operations:.1f}, {operations * 1e6 / (8 * 40 * 3600):.1f} h"


def test_the_citation_is_of_this_version_and_of_the_paper_that_the_readme_cites():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == gmmseg.__version__
    paper = citation["preferred-citation"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    assert f"author    = {{{authors}}}" in readme
    assert paper["title"] in re.search(r"title     = {(.*)}", readme)[1].replace("{", "").replace("}", "")
    assert paper["url"] in readme
