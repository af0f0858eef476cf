"""The notebooks run from the first cell to the last, and what they say of themselves holds."""

import ast
import json
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from gmmseg import run
from gmmseg.config import load_config
from gmmseg.data import Scenes, ScenesAnomaly

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FEW_IMAGES = pytest.mark.filterwarnings("ignore:.*false alarms per pixel need:UserWarning")
"""So few images that thresholds promise nothing."""
HARDLY_TRAINED = pytest.mark.filterwarnings("ignore:temperature 256:UserWarning")


def cells(path):
    """Each code cell as (source, whether it holds the sizes that a test makes smaller)."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), "parameters" in cell["metadata"].get("tags", ())


def run_notebook(name, **parameters):
    """The names that a notebook leaves behind; a cell's last value is asked for its notebook pictures."""
    names = {"__name__": "__main__"}
    for source, has_parameters in cells(FOLDER / name):
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            _display(eval(compile(ast.Expression(last.value), name, "eval"), names))
        if has_parameters:
            assert parameters.keys() <= names.keys(), "a size that the notebook does not know"
            names |= parameters
    return names


def _display(value):
    for kind in ("_repr_html_", "_repr_markdown_", "_repr_png_"):
        if hasattr(type(value), kind):
            assert getattr(value, kind)()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert notebook["cells"][0]["source"][0].startswith("# ")


@pytest.fixture
def few_scenes(monkeypatch):
    """Opened by name, the built-in scenes are few as well."""
    for kind in (Scenes, ScenesAnomaly):
        monkeypatch.setattr(kind, "lengths", {"train": 8, "val": 2, "test": 4})


@FEW_IMAGES
@HARDLY_TRAINED
def test_the_demo_step_by_step(few_scenes, elsewhere):
    names = run_notebook("01_demo.ipynb", CONFIG="scenes", SETTINGS=["train.steps=2"])
    assert [result["name"] for result in names["results"]] == ["gmm", "softmax"]
    assert names["models"]["gmm"].density is not None
    assert (elsewhere / "demo/pictures/overlay/image.png").is_file()
    report = (elsewhere / "demo/report.html").read_text(encoding="utf-8")
    assert ">Results</h2>" in report, "the figures too, and not the pictures alone"


@FEW_IMAGES
def test_a_folder_from_files_to_a_promise(elsewhere):
    settings = [
        "model.name=tiny_unet",
        "model.weights=null",
        "train.backbone_multiplier=1",
        "data.crop=[32,48]",
    ]
    settings += ["train.cached_crops=0", "train.steps=2", "train.batch_size=2", "data.workers=0"]
    words = {"TRAIN_IMAGES": 3, "OTHER_IMAGES": 12, "SIZE": (32, 48)}
    names = run_notebook("02_your_folder.ipynb", SETTINGS=settings, **words)
    assert names["model"].calibration.promise.alpha == 0.1
    assert names["model"].colours == names["space"].colours
    assert names["summary"].done == 4
    saved = [path for path in Path("one_picture").rglob("*") if path.is_file()]
    assert len(saved) == 6
    for path in saved:
        of_the_command = Path("pictures") / path.relative_to("one_picture")
        assert path.read_bytes() == of_the_command.read_bytes()


@FEW_IMAGES
@HARDLY_TRAINED
def test_a_model_one_has_keeps_its_labels(elsewhere):
    words = {"STEPS": 1, "TRAIN_IMAGES": 8, "TEST_IMAGES": 2, "SIZE": (32, 64)}
    names = run_notebook("03_convert_a_model.ipynb", **words)
    assert names["same"]
    before, fitted = (each["sets"]["scenes/test"]["metrics"]["miou"] for each in names["results"])
    assert before == fitted
    assert names["generative"].is_fitted


@FEW_IMAGES
def test_the_loop_by_hand_is_that_of_the_trainer(elsewhere):
    """The notebook itself asserts that its resumed run ends with the weights of the uninterrupted one."""
    words = {"STEPS": 6, "TRAIN_IMAGES": 18, "TEST_IMAGES": 3, "SIZE": (32, 48)}
    names = run_notebook("04_own_training_loop.ipynb", **words)
    assert names["model"].calibration.score == "fused"
    config = load_config("scenes", ["train.steps=6", "train.backbone_multiplier=1"])
    torch.manual_seed(0)
    segmenter = run.make_segmenter(config, names["train_set"])
    trainer = run.make_trainer(
        config, segmenter, names["loader"], Accelerator(cpu=True), elsewhere / "trainer"
    )
    trainer.run()
    by_hand = names["uninterrupted"]
    assert by_hand.keys() == segmenter.state_dict().keys()
    for name, value in segmenter.state_dict().items():
        assert torch.equal(value, by_hand[name]), name
