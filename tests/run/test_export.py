"""The commands: a folder of weights becomes a file that predicts as it does; the blocks of docs/export.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import gmmseg
from gmmseg.cli import app
from gmmseg.inference import Predictor
from gmmseg.inference.int8 import QUANTISED
from gmmseg.models import Calibration, InferenceSettings
from gmmseg.models.calibration_file import PIXELS, Threshold
from gmmseg.models.saving import digest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "onnx_runtime.py"


def gmmseg_command(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def place(root, tmp_path_factory):
    """A folder with a calibrated model, a photograph and a labelled set."""
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=2).eval()
    segmenter.label_names = ("sky", "grass")
    for module in segmenter.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.uniform_(0.01, 0.05)
    segmenter.mixture.means.normal_()
    segmenter.mixture.variances.uniform_(0.1, 0.5)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "photo.png")
    scores = Predictor(segmenter).predict(place / "photo.png").anomaly
    thresholds = {PIXELS: Threshold(float(scores.quantile(0.9)), 0.1)}
    segmenter.calibration = Calibration(digest(segmenter), thresholds, 1.5, None, data=None, time=None)
    segmenter.save_pretrained(place / "model")
    (place / "data").symlink_to(root)
    (place / "examples").symlink_to(ROOT / "examples")
    assert (
        gmmseg_command("export", place / "model", "--out", place / "model.onnx", "--posterior").exit_code == 0
    )
    return place


def test_predict_writes_the_same_files_with_a_folder_and_with_a_file(place, tmp_path):
    for name, model in (("a", "model"), ("b", "model.onnx")):
        words = ("predict", place / "photo.png", "--model", place / model, "--out", tmp_path / name, "--raw")
        assert gmmseg_command(*words).exit_code == 0
    files = sorted(str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.*"))
    assert files == sorted(str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*.*"))
    for kind in ("labels", "unknown"):
        ours, theirs = (np.asarray(Image.open(tmp_path / each / kind / "photo.png")) for each in "ab")
        assert np.array_equal(ours, theirs)
    with (
        np.load(tmp_path / "a" / "raw" / "photo.npz") as ours,
        np.load(tmp_path / "b" / "raw" / "photo.npz") as theirs,
    ):
        for key in ("anomaly", "posterior"):
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-4)


def test_the_example_needs_neither_torch_nor_gmmseg(place):
    assert len(EXAMPLE.read_text().splitlines()) < 60
    command = [sys.executable, "-X", "importtime", str(EXAMPLE), "model.onnx", "photo.png"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"torch", "gmmseg"}
    assert "sky" in done.stdout
    predictor = Predictor(gmmseg.from_pretrained(place / "model"))
    expected = predictor.predict(place / "photo.png").unknown
    assert np.array_equal(np.asarray(Image.open(place / "photo_unknown.png")) > 0, expected.numpy())
    (place / "photo_unknown.png").unlink()


def test_the_example_reads_floats_and_16_bits_and_refuses_no_number(place, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "plain.png")
    Image.fromarray((pixels / 255).astype(np.float32)).save(tmp_path / "floats.tiff")
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    command = [sys.executable, str(EXAMPLE), str(place / "model.onnx")]
    for name in ("plain.png", "floats.tiff", "deep.png"):
        subprocess.run([*command, name], cwd=tmp_path, check=True, timeout=120)
    plain, *others = (
        np.asarray(Image.open(tmp_path / f"{each}_overlay.png")) for each in ("plain", "floats", "deep")
    )
    assert all(np.array_equal(plain, each) for each in others)
    done = subprocess.run(
        [*command, "plain.png", "--threshold", "nan"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "--threshold is a finite number, got nan" in done.stderr) == (2, True)


@pytest.mark.parametrize(("short_side", "posterior"), [(40, False), (90, True)])
def test_the_example_looks_at_images_as_predict_does(place, tmp_path, short_side, posterior):
    segmenter = gmmseg.from_pretrained(place / "model")
    means = segmenter.mixture.means
    means[1] = means[0] + 0.1 * torch.randn(means[0].shape, generator=torch.Generator().manual_seed(0))
    segmenter.mixture.variances[1] = segmenter.mixture.variances[0]
    segmenter.calibration, segmenter.inference = None, InferenceSettings(short_side=short_side)
    seen = Predictor(segmenter).predict(place / "photo.png")
    segmenter.mixture.log_prior[1] -= seen.posterior.log().diff(dim=0).median()  # both classes are found
    thresholds = {PIXELS: Threshold(float(seen.anomaly.quantile(0.8)), 0.2)}
    segmenter.calibration = Calibration(digest(segmenter), thresholds, 1.5, None, data=None, time=None)
    gmmseg.inference.export(segmenter, tmp_path / "m.onnx", posterior=posterior)
    Image.open(place / "photo.png").save(tmp_path / "photo.png")
    subprocess.run(
        [sys.executable, str(EXAMPLE), "m.onnx", "photo.png"], cwd=tmp_path, check=True, timeout=120
    )
    words = ("predict", tmp_path / "photo.png", "--model", tmp_path / "m.onnx", "--out", tmp_path / "out")
    assert gmmseg_command(*words).exit_code == 0
    for kind in ("labels", "unknown"):
        ours = np.asarray(Image.open(tmp_path / f"photo_{kind}.png"))
        expected = np.asarray(Image.open(tmp_path / "out" / kind / "photo.png"))
        assert (ours != expected).mean() < 0.002, kind  # rounding may decide a few pixels
        assert 0.02 < (expected > 0).mean() < 0.98


def test_a_shorter_side_is_kept_with_the_file(place, tmp_path):
    segmenter = gmmseg.from_pretrained(place / "model")
    segmenter.inference = InferenceSettings(short_side=40)
    segmenter.save_pretrained(tmp_path / "model")
    assert (
        gmmseg_command("export", tmp_path / "model", "--out", tmp_path / "m.onnx", "--posterior").exit_code
        == 0
    )
    found = gmmseg.inference.ExportedPredictor(gmmseg.inference.open_exported(tmp_path / "m.onnx")).predict(
        place / "photo.png"
    )
    expected = Predictor(segmenter).predict(place / "photo.png")
    assert torch.equal(found.labels, expected.labels)
    torch.testing.assert_close(found.posterior, expected.posterior, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.anomaly, expected.anomaly, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "photo.png", "--model", "model.onnx", "--window", "32"), "sees an image in one way"),
        (("export", "model", "--out", "x.onnx", "--int8"), "needs --data"),
        (("export", "model", "--out", "x.xml", "--int8", "--data", "scenes", "--format", "openvino"), "ONNX"),
        (("bench", "model", "--runtimes", "abacus"), "unknown runtime"),
        (("bench", "model", "--runtimes", ","), "no runtime is named"),
        (("export", "model", "--int8", "--data", "scenes", "--out", "photo.png"), "end in .onnx"),
        (("calibrate", "model.onnx", "--data", "scenes"), "model.onnx is an exported file"),
        (("bench", "model.onnx"), "model.onnx is an exported file"),
        (("bench", "model", "--runtimes", "eager, abacus"), "unknown runtime 'abacus'"),
        (("app", "--model", "photo.png"), "photo.png is a file"),
    ],
)
def test_what_makes_no_sense_together_is_refused(place, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match=message):
        gmmseg_command(*words)


def test_a_folder_in_the_place_of_benchs_results_is_told_before_the_measurement(place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(OSError, match="there is a folder of this name"):
        gmmseg_command("bench", "model", "--runtimes", "eager", "--out", "model")


def test_raw_values_need_the_posterior(place, tmp_path):
    assert gmmseg_command("export", place / "model", "--out", tmp_path / "m.onnx").exit_code == 0
    with pytest.raises(ValueError, match="export it with --posterior"):
        gmmseg_command(
            "predict", place / "photo.png", "--model", tmp_path / "m.onnx", "--out", tmp_path / "o", "--raw"
        )
    assert not list(tmp_path.rglob("*.png"))


def test_the_python_blocks_of_the_page_run(place):
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "100.0% of the labels are the model's own" in done.stdout


def test_the_shell_blocks_of_the_page_run(place, monkeypatch):
    monkeypatch.chdir(place)
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()
    ]
    assert len(lines) == 7
    for line in lines:
        program, *words = line.split()
        if program == "python":
            subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=120)
        else:
            assert gmmseg_command(*words).exit_code == 0, line
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert [(row["head"], row["runtime"]) for row in rows] == [("gmm", "onnx"), ("softmax", "onnx")]
    assert all(row["p50_ms"] <= row["p95_ms"] and row["rounds"] >= 5 for row in rows)
    assert rows[0]["ratio"] > 0
    assert rows[1]["ratio"] is None
    small = gmmseg.inference.open_exported(Path("small.onnx"))
    exact = gmmseg.inference.open_exported(Path("model.onnx"))
    assert small.metadata.precision == "int8"
    assert Path("small.onnx").stat().st_size < 0.5 * Path("model.onnx").stat().st_size
    images = torch.rand(1, 3, 48, 64)
    same = small(images)["labels"] == exact(images)["labels"]
    assert same.float().mean() > 0.8
    kinds = {"/".join(name.split("/")[:3]) for name in eight_bit_products(Path("small.onnx"))}
    assert kinds == {"/network/features"}  # neither mixtures nor the sum of the posterior


def eight_bit_products(path):
    """Names of the products of an ONNX file whose inputs come of eight bits."""
    nodes = onnx.load(path).graph.node
    made = {name for node in nodes if node.op_type == "DequantizeLinear" for name in node.output}
    return [node.name for node in nodes if node.op_type in QUANTISED and made & set(node.input)]
