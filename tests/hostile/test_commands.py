"""Tables of words: every command with paths that are not what it wants, numbers out of range, odd names."""

import json
import os
import re
import shutil

import pytest
from harness import assert_refused, copied, invoke, write_scores

ODD = {
    "missing": lambda p: None,
    "empty file": lambda p: p.write_bytes(b""),
    "folder": lambda p: p.mkdir(),
    "text": lambda p: p.write_text("hello\n"),
    "pipe": os.mkfifo,
    "dangling": lambda p: p.symlink_to("nowhere"),
    "loop": lambda p: p.symlink_to(p.name),
}
COMMANDS = {
    # what is odd is called `odd`; {world} is whole
    "calibrate": ["calibrate", "odd", "-d", "folder:{world}/data:val"],
    "calibrate data": ["calibrate", "{world}/run", "-d", "folder:odd:val"],
    "adapt": ["adapt", "./odd", "-d", "folder:{world}/data:train", "--out", "out"],
    "adapt data": ["adapt", "{world}/run", "-d", "folder:odd:train", "--out", "out"],
    "fit": ["fit", "./odd", "-d", "folder:{world}/data:train", "--out", "out"],
    "fit data": ["fit", "{world}/run", "-d", "folder:odd:train", "--out", "out"],
    "evaluate": ["evaluate", "./odd", "-d", "folder:{world}/data:val"],
    "evaluate data": ["evaluate", "{world}/run", "-d", "folder:odd:val", "--out", "out.json"],
    "evaluate camvid": ["evaluate", "{world}/run", "-d", "camvid:odd:val", "--out", "out.json"],
    "evaluate anomaly": ["evaluate", "{world}/run", "-d", "road_anomaly:odd", "--out", "out.json"],
    "evaluate own anomalies": ["evaluate", "{world}/run", "-d", "anomaly_folder:odd", "--out", "out.json"],
    "evaluate parquet": ["evaluate", "{world}/run", "-d", "hf:odd:val", "--out", "out.json"],
    "score scores": ["score", "--scores", "odd", "--masks", "{world}/masks"],
    "score masks": ["score", "--scores", "{world}/scores", "--masks", "odd"],
    "compare": ["compare", "odd"],
    "compare second": ["compare", "{world}/results.json", "odd"],
    "predict": ["predict", "{world}/data/images/val/0.png", "-m", "./odd"],
    "report": ["report", "odd"],
    "report data": ["report", "{world}/run", "-d", "folder:odd:val"],
    "import": ["import", "odd", "--out", "out"],
    "add-class": [
        "add-class",
        "./odd",
        "--name",
        "x",
        "--images",
        "{world}/masks",
        "--masks",
        "{world}/masks",
        "--out",
        "out",
    ],
    "add-class images": [
        "add-class",
        "{world}/run",
        "--name",
        "x",
        "--images",
        "odd",
        "--masks",
        "{world}/masks",
        "--out",
        "out",
    ],
    "add-class masks": [
        "add-class",
        "{world}/run",
        "--name",
        "x",
        "--images",
        "{world}/data/images/val",
        "--masks",
        "odd",
        "--out",
        "out",
    ],
    "remove-class": ["remove-class", "./odd", "--name", "sky", "--out", "out"],
    "explain": ["explain", "./odd", "{world}/data/images/val/0.png", "--at", "1,1"],
    "explain image": ["explain", "{world}/run", "odd", "--at", "1,1"],
    "explain data": ["explain", "{world}/run", "--build", "--data", "folder:odd:train"],
    "data check": ["data", "check", "folder", "odd"],
    "data check camvid": ["data", "check", "camvid", "odd"],
    "convert": ["data", "convert-coco-stuff", "odd", "out"],
    "data check parquet": ["data", "check", "hf_stream", "odd"],
    "convert masks": ["data", "convert-masks", "odd", "out"],
    "convert masks colours": ["data", "convert-masks", "{world}/masks", "out", "--colours", "odd"],
    "train root": ["train", "folder", "data.root=odd", "--cpu"],
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("command", COMMANDS)
def test_paths_that_are_not_what_they_should_be(place, world, command, kind):
    ODD[kind](place / "odd")
    assert_refused(place, [word.format(world=world) for word in COMMANDS[command]], ["odd"])


USAGE = [
    ["predict"], ["predict", "x.png"], ["score"], ["score", "--scores", "x"], ["fit", "x"], ["calibrate", "x"],
    ["evaluate", "x"], ["add-class", "x"], ["merge-classes", "x", "--name", "y"], ["explain"], ["compare"], ["report"], ["import", "x"], ["train"], ["data", "check"], ["nonsense"],
    ["data", "nonsense"], ["zoo", "extra"], ["configs", "extra"], ["--nonsense"], ["demo", "--steps", "0"],
    ["demo", "--steps", "many"], ["demo", "--steps", "-5"], ["demo", "--seed", "-1"], ["demo", "--seed", "1.5"],
    ["predict", "x", "-m", "y", "--window", "-8"],
    ["predict", "x", "-m", "y", "--window", "nan"],
    ["evaluate", "x", "-d", "y", "--window", "-1"], ["evaluate", "x", "-d", "y", "--short-side", "-3"],
    ["evaluate", "x", "-d", "y", "--stride", "-1"], ["evaluate", "x", "-d", "y", "--short-side", "1e3"],
    ["fit", "x", "-d", "y", "--out", "o", "--components", "0"], ["adapt", "x"], ["adapt", "x", "-d", "y"],
    ["adapt", "x", "-d", "y", "--out", "o", "--minutes", "soon"],
    ["fit", "x", "-d", "y", "--out", "o", "--passes", "-1"], ["train", "scenes", "--resume-from"],
]  # fmt: skip


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage(place, words):
    assert_refused(place, words, code=2)


WORDS = [
    # command, words of the message
    (["compare", "{world}/results.json", "--format", "html"], ["unknown format 'html': choose markdown, csv"]),
    (["compare", "{world}/results.json", "--format", ""], ["choose markdown, csv or latex"]),
    (["compare", "{world}/results.json", "--paper", "GMMSeg"], ["no figures of 'GMMSeg'", "GMMSeg-SegFormer"]),
    (["evaluate", "{world}/run", "-d", "nonsense:x"], ["no data set called 'nonsense'; there are: cityscapes"]),
    (["evaluate", "{world}/run", "-d", ""], ["no data set called ''"]),
    (["evaluate", "{world}/run", "-d", ":"], ["no data set called ''"]),
    (["evaluate", "{world}/run", "-d", "folder"], ["folder is kept in files: say in which folder"]),
    (["evaluate", "{world}/run", "-d", "folder:{world}/data:test"], ["no split 'test'; there are: train, val"]),
    (["evaluate", "{world}/run", "-d", "folder:{world}/data:../train"], ["no split '../train'"]),
    (["evaluate", "{world}/run", "-d", "scenes::nonsense"], ["scenes has no split 'nonsense'; there are: train"]),
    (["evaluate", "{world}/run", "-d", "scenes"], ["classes, the model 3"]),
    (["evaluate", "{world}/run", "-d", "folder:{world}/data", "--scores", "nll,x"], ["unknown score 'x': choose"]),
    (["evaluate", "{world}/run", "-d", "folder:{world}/data", "--window", "8", "--stride", "9"], ["stride 9", "window size 8"]),
    (["evaluate", "{world}/run", "-d", "folder:{world}/data", "--stride", "9"], ["stride", "window"]),
    (["predict", "{world}/data/images/val/0.png", "-m", "{world}/run", "--stride", "9"], ["stride", "window"]),
    (["predict", "{world}/data/images/val/0.png", "-m", "{world}/run", "--window", "8", "--stride", "9"], ["9"]),
    (["predict", "{world}/data/images/val/0.png", "-m", ""], ["config.json is missing"]),
    (["predict", "absent.png", "-m", "{world}/run"], ["absent.png: no such file"]),
    (["score", "--scores", "{world}/scores", "--masks", "{world}/masks", "--components", "x"], ["anomaly"]),
    (["score", "--scores", "{world}/scores", "--masks", "{world}/scores"], ["scores: holds no mask"]),
    (["score", "--scores", "{world}/data/images/val", "--masks", "{world}/masks"], ["do not pair up by name"]),
    (["adapt", "{world}/run", "-d", "folder:{world}/data", "--out", "o"], ["run is generative already"]),
    (["adapt", "{world}/run", "-d", "folder:{world}/data", "--out", "o", "--minutes", "0"], ["got 0 minutes"]),
    (["adapt", "{world}/run", "-d", "folder:{world}/data", "--out", "o", "--minutes", "nan"], ["got nan minutes"]),
    (["adapt", "{world}/run", "-d", "folder:{world}/data", "--out", "o", "--train", "x"], ["choose decoder or head"]),
    (["adapt", "smp:Unet/resnet18", "-d", "folder:{world}/data", "--out", "o"], ["not a trained model"]),
    (["data", "check", "nonsense", "{world}/data"], ["no data set called 'nonsense'"]),
    (["data", "check", "scenes", "{world}/data"], ["scenes"]),
    (["data", "check", "", "{world}/data"], ["no data set called ''"]),
    (["data", "convert-masks", "{world}/masks", "{world}/masks"], ["lies in the folder of the masks"]),
    (["data", "convert-masks", "{world}/masks", "out", "--colours", "{world}/data/classes.txt"], ["names no colours"]),
    (["evaluate", "{world}/run", "-d", "hf"], ["hf: say which set"]),
    (["evaluate", "{world}/run", "-d", "hf:a/b/c:val"], ["no such folder of parquet files"]),
    (["train", "scenes", "machine=cpu", "--cpu"], ["machine=cpu: it holds settings for one kind of machine"]),
    (["train", "folder", "machine=tpu", "--cpu"], ["machine: choose 'gpu' or 'cpu', got 'tpu'"]),
    (["train", "scenes", "model.name=nonsense", "--cpu"], ["unknown network 'nonsense'"]),
    (["train", "scenes", "data.name=nonsense", "--cpu"], ["no data set called 'nonsense'"]),
    (["train", "scenes", "data.train_split=nonsense", "--cpu"], ["no split 'nonsense'"]),
    (["train", "scenes", "data.held_out=[nonsense]", "--cpu"], ["cannot hide ['nonsense']"]),
    (["train", "scenes", "data.held_out=['']", "--cpu"], ["held_out"]),
    (["train", "folder", "--cpu"], ["folder is kept in files"]),
    (["train", "scenes", "data.name=scenes_anomaly", "data.train_split=test", "--cpu"], ["scenes_anomaly"]),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), WORDS, ids=lambda each: " ".join(each)[:60])
def test_words(place, world, words, expected):
    assert_refused(place, [word.format(world=world) for word in words], expected)


TARGETS = {
    "score": ["score", "--scores", "{world}/scores", "--masks", "{world}/masks", "--out", "taken/x"],
    "report": ["report", "{world}/results.json", "--out", "taken/x"],
    "fit": ["fit", "{world}/run", "-d", "folder:{world}/data:val", "--components", "1", "--passes", "1",
            "--out", "taken/x"],
    "train": ["train", "scenes", "--cpu", "--out", "taken/x"],
}  # fmt: skip


@pytest.mark.parametrize("command", ["score", "report"])
def test_a_file_where_a_folder_should_be_made(place, world, command):
    (place / "taken").write_text("mine")
    assert_refused(place, [word.format(world=world) for word in TARGETS[command]], ["taken"])
    assert (place / "taken").read_text() == "mine"


@pytest.mark.parametrize("command", ["score", "report"])
def test_a_folder_where_a_file_should_be_written(place, world, command):
    (place / "taken" / "x").mkdir(parents=True)
    assert_refused(place, [word.format(world=world) for word in TARGETS[command]], ["taken/x"])


NAMES = ["\x1b[31mred\x1b[0m", "a\rb", "a\x07b", "\x9b2J", "\u202eabc", "a\u2028b", "a\x7fb"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_control_characters_do_not_reach_the_terminal(place, world, name):
    (place / name).mkdir()
    outputs = [invoke("compare", name), invoke("report", name), invoke("data", "check", "folder", name)]
    write_scores(place / name)
    outputs.append(invoke("score", "--scores", f"{name}/scores", "--masks", f"{name}/masks", "--name", name,
                          "--out", f"{name}/results.json"))  # fmt: skip
    for form in ("markdown", "csv", "latex"):
        outputs.append(invoke("compare", f"{name}/results.json", "--format", form))
    shutil.copy(world / "data/images/val/0.png", place / name / f"{name}.png")
    (place / name / f"{name}2.png").write_text("broken")
    outputs.append(invoke("predict", f"{name}/{name}2.png", "-m", world / "run", "--out", f"{name}/out"))
    for outcome in outputs:
        said = outcome.out + "".join(line for line in outcome.err.splitlines(True) if "gmmseg: " in line)
        assert not set(said) & set("\x1b\r\x07\x9b\u202e\u2028\x7f"), ascii(said)
        assert "Traceback" not in outcome.err


def named_results(world, place, name):
    results = json.loads((world / "results.json").read_text())
    results["name"] = name
    results["sets"] = {name: results["sets"]["scores"]}
    path = place / "results.json"
    path.write_text(json.dumps(results))
    return path


TRICKY = [r"$\x$", "$$", "a$b", r"\$x$", "_a", "<b>&amp;", "=1+1", "+1", "-1", "@x", "a|b", "a&b%c#d_e{f}~g^h\\i",
          "", " ", "é" * 50, "a\nb", '"', "a,b", "None", "nan", "\ud800"]  # fmt: skip


def test_tricky_names_in_a_report(place, world):
    results = json.loads((world / "results.json").read_text())
    scores = results["sets"]["scores"]["scores"]
    results["sets"]["scores"]["scores"] = dict.fromkeys(TRICKY, scores["scores"])
    (place / "results.json").write_text(json.dumps(results))
    outcome = invoke("report", "results.json")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("name", TRICKY, ids=ascii)
def test_names_with_a_meaning_elsewhere(place, world, name):
    path = named_results(world, place, name)
    latex = invoke("compare", path, "--format", "latex").out
    row = re.sub(r"\\[&%#_{}$]", "", latex.splitlines()[4].split(" & ")[0])
    assert not set(row) & set("$_^~&")
    assert len([line for line in latex.splitlines() if line.endswith(r"\\")]) == 4
    for line in invoke("compare", path, "--format", "csv").out.splitlines():
        assert not line.lstrip('"').startswith(("=", "+", "-", "@"))


def test_a_run_with_a_tricky_name_is_reported(place, world):
    copied(world / "run", place / r"$\x$")
    outcome = invoke("report", r"$\x$")
    assert outcome.code == 0, outcome.err
    assert r"$\x$" in (place / "report.html").read_text()
