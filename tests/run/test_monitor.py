"""The command: lines of JSON, broken frames named and passed over, state kept, exit code on alarm."""

import io
import json
import os
import runpy
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gmmseg
from gmmseg import cli, distributed
from gmmseg.data import Scenes
from gmmseg.inference import Predictor, calibrate
from gmmseg.labels import LabelSpace
from gmmseg.models.calibration_file import write_calibration
from gmmseg.models.reference_images import CONDITIONS, STORED_AS
from gmmseg.run import open_monitor
from gmmseg.samples import Sample


class Noise:
    """Grey noise as a labelled set of two classes."""

    name, split, root = "noise", "val", None

    def __init__(self, label_space):
        self.label_space = label_space

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return Sample(
            torch.from_numpy(pixels(index)).movedim(-1, 0), torch.zeros(16, 24, dtype=torch.uint8), str(index)
        )

    def labels(self, index):
        return self[index].labels


def pixels(seed, brightness=0):
    return np.random.default_rng(seed).integers(0, 120, (16, 24, 3)).astype(np.uint8) + np.uint8(brightness)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=2, head="softmax")
    space = LabelSpace(("left", "right"), ((0, 0, 0), (9, 9, 9)))
    segmenter.calibration = calibrate(Predictor(segmenter), Noise(space))
    folder = tmp_path_factory.mktemp("models") / "noise"
    segmenter.save_pretrained(folder)
    return folder


@pytest.fixture
def photos(tmp_path):
    """Six images like those of calibration, then twelve bright ones; a broken one between them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(18):
        Image.fromarray(pixels(1000 + index, 0 if index < 6 else 130)).save(folder / f"{index:02d}.png")
    (folder / "03_broken.png").write_bytes(b"nothing")
    return folder


@pytest.fixture
def monitor(monkeypatch, capsys):
    """Runs the command; returns its code, lines of output and what went to the error stream."""

    def run(*arguments, lines=""):
        monkeypatch.setattr(sys, "argv", ["gmmseg", "monitor", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines) if isinstance(lines, str) else lines)
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


def test_a_name_that_is_no_text_is_passed_over(model, photos, monitor):
    given = io.TextIOWrapper(
        io.BytesIO(b"bad\xff.png\n" + bytes(photos / "00.png") + b"\n"), encoding="utf-8"
    )
    code, lines, _ = monitor(model, "--input", "lines", lines=given)
    assert code == 0
    assert [each.get("name") for each in lines] == ["bad\udcff.png", str(photos / "00.png"), None]
    assert ["error" in each for each in lines] == [True, False, False]


def test_a_change_is_told_and_the_broken_image_is_named(model, photos, monitor):
    code, lines, said = monitor(model, "--input", photos)
    assert code == 0
    *seen, last = lines
    assert [each["name"] for each in seen if "error" in each] == ["03_broken.png"]
    assert [each["index"] for each in seen if "error" not in each] == list(range(18))
    summary = last["summary"]
    assert (summary["images"], summary["broken"], summary["limit"]) == (18, 1, 200)
    (alarm,) = [each for each in summary["alarms"] if each["kind"] == CONDITIONS]
    assert 6 <= alarm["index"] < 18
    assert {each["name"] for each in summary["strangest"][CONDITIONS]} <= {
        f"{n:02d}.png" for n in range(6, 18)
    }
    assert f"alarm: new conditions, noticed at image {alarm['index']}" in said
    assert seen[alarm["index"] + 1]["alarms"][-1]["kind"] == CONDITIONS  # one line is of the broken image


def test_lines_are_paths_and_the_exit_code_tells_of_an_alarm(model, photos, monitor, tmp_path):
    order = [*sorted(photos.iterdir())[:3], tmp_path / "gone.png", "", "nul\0", photos]
    code, lines, _ = monitor(model, "--input", "lines", "--exit-code", lines="\n".join(map(str, order)))
    assert code == 0
    assert [each["name"] for each in lines[:-1] if "error" in each] == [
        str(each) for each in (order[3], order[5], order[6])
    ]
    code, lines, _ = monitor(
        model, "--input", "lines", "--exit-code", lines="\n".join(map(str, sorted(photos.iterdir())))
    )
    assert code == 3
    assert lines[-2]["alarms"]  # it ends at the alarm
    assert lines[-1]["summary"]["images"] < 18


def test_a_state_goes_on_and_keeps_its_alarm(model, photos, monitor, tmp_path):
    state, paths = tmp_path / "state.json", sorted(photos.iterdir())
    _, whole, _ = monitor(model, "--input", photos)
    _, first, _ = monitor(model, "--input", "lines", "--state", state, lines="\n".join(map(str, paths[:5])))
    _, second, _ = monitor(model, "--input", "lines", "--state", state, lines="\n".join(map(str, paths[5:])))
    wealth = [each["wealth"] for each in [*first[:-1], *second[:-1]] if "wealth" in each]
    assert wealth == [each["wealth"] for each in whole[:-1] if "wealth" in each]
    code, lines, _ = monitor(model, "--input", photos, "--state", state, "--exit-code")
    assert (code, len(lines)) == (3, 1)  # the alarm stands
    code, _, said = monitor(model, "--input", photos, "--state", state, "--false-alarms", "0.2")
    assert code == 1
    assert "state.json: it was begun with a promise of 0.01" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_watch_tells_and_keeps_what_it_has_seen(model, photos, monitor, tmp_path, number):
    def paths():
        yield str(photos / "03_broken.png")
        yield str(photos / "00.png")
        os.kill(os.getpid(), number)
        yield str(photos / "01.png")

    state = tmp_path / "state.json"
    code, lines, _ = monitor(model, "--input", "lines", "--state", state, lines=paths())
    assert code == 130
    assert [each.get("name") for each in lines[:2]] == [str(photos / "03_broken.png"), str(photos / "00.png")]
    assert [lines[2]["summary"][each] for each in ("images", "broken")] == [1, 1]
    _, again, _ = monitor(model, "--input", "lines", "--state", state)
    assert again[-1]["summary"]["images"] == 1


def test_bad_input_is_one_line(model, monitor, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "no images or videos in" in monitor(model, "--input", tmp_path / "empty")[2]
    assert "no such file or folder" in monitor(model, "--input", tmp_path / "gone")[2]
    monkeypatch.setattr(distributed, "several", lambda: True)
    with pytest.raises(ValueError, match="as one process"):
        open_monitor(model)


@pytest.mark.parametrize("kept", [(), ("objects", "conditions")], ids=["none", "other statistics"])
def test_an_older_calibration_is_refused_with_the_command(model, monitor, tmp_path, kept):
    segmenter = gmmseg.from_pretrained(model)
    segmenter.save_pretrained(tmp_path / "old")
    counts = segmenter.calibration.image_statistics[STORED_AS[CONDITIONS]]
    older = replace(segmenter.calibration, image_statistics=dict.fromkeys(kept, counts))
    write_calibration(older, tmp_path / "old")
    code, lines, said = monitor(tmp_path / "old", "--input", tmp_path)
    assert (code, lines) == (1, [])
    assert f"run gmmseg calibrate {tmp_path / 'old'} --data" in said


def test_frames_of_a_video_are_watched_and_a_cut_one_is_named(model, monitor, tmp_path):
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'gmmseg[video]'")
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 24, 16, "yuv420p"
        for index in range(30):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels(index), format="rgb24")))
        container.mux(stream.encode())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    _, lines, _ = monitor(model, "--input", path)
    *frames, broken, last = lines
    assert 0 < len(frames) < 30
    assert frames[0]["name"] == "clip.mkv/000000"
    assert "cut off" in broken["error"]
    assert last["summary"]["images"] == len(frames)


def example(*words):
    """What `examples/monitor.py` returns."""
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / "monitor.py"))["main"](words)


@pytest.mark.slow
def test_the_example_notices_the_fog_and_names_it(capsys):
    assert example() == CONDITIONS
    assert "new conditions" in capsys.readouterr().out


def test_the_example_notices_the_fog_with_a_given_model(tmp_path, capsys):
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=10, head="softmax")
    with warnings.catch_warnings(action="ignore"):  # nobody has trained it
        segmenter.calibration = calibrate(Predictor(segmenter), Scenes("val", length=40))
    segmenter.save_pretrained(tmp_path)
    assert example("--model", str(tmp_path)) is not None  # a trained network tells which
    assert "strangest: scenes_test_" in capsys.readouterr().out
