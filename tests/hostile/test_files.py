"""Tables of spoilt files: each kind of file a command reads, in each way it can be wrong."""

import json
import os
import zipfile
import zlib

import h5py
import numpy as np
import pytest
import torch
from harness import SIZE, TINY, assert_refused, copied, invoke, write_data, write_scores
from PIL import Image
from safetensors.torch import save_file


class _Delete:
    def __repr__(self):  # names cases, alike in every process
        return "deleted"


DELETE = _Delete()
PICTURE = "data/images/val/0.png"  # of the world: a whole one, so that the model is what is wrong


def bomb_png(path, side=60_000):
    """A PNG that says it has 3.6 thousand million pixels."""
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\x00\x00\x00\x00"
    data = b"IDAT" + zlib.compress(b"\x00" * 1000)
    parts = [len(part[4:]).to_bytes(4, "big") + part + zlib.crc32(part).to_bytes(4, "big")
             for part in (header, data, b"IEND")]  # fmt: skip
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def truncated(path, write):
    write(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changed(value, key, new):
    """A copy of nested dictionaries with the dotted ``key`` set, or taken out."""
    value = json.loads(json.dumps(value))
    at = value
    *way, last = key.split("/")
    for part in way:
        at = at[part]
    if new is DELETE:
        del at[last]
    else:
        at[last] = new
    return value


def write_npz(path, **arrays):
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def write_h5(path, fill):
    with h5py.File(path, "w") as file:
        fill(file)


MAP = np.random.default_rng(0).random((12, 16), np.float32)


def h5_external(path):
    (path.parent.parent / "secret").write_bytes(bytes(range(192)))
    write_h5(path, lambda f: f.create_dataset(
        "x", (12, 16), "u1", external=[(str(path.parent.parent / "secret"), 0, 192)]))  # fmt: skip


def h5_virtual(path):
    other = path.parent.parent / "other.h5"
    write_h5(other, lambda f: f.create_dataset("x", data=MAP))
    layout = h5py.VirtualLayout((12, 16), "f4")
    layout[:] = h5py.VirtualSource(str(other), "x", (12, 16))
    write_h5(path, lambda f: f.create_virtual_dataset("x", layout))


def h5_link(path):
    other = path.parent.parent / "other.h5"
    write_h5(other, lambda f: f.create_dataset("x", data=MAP))
    write_h5(path, lambda f: f.__setitem__("x", h5py.ExternalLink(str(other), "x")))


SCORES = [
    # suffix, how the file is written, words of the message
    (".npy", lambda p: p.write_bytes(b""), "cannot be read"),
    (".npy", lambda p: p.write_text("text"), "cannot be read"),
    (".npy", lambda p: truncated(p, lambda q: np.save(q, MAP)), "cannot be read"),
    (".npy", lambda p: np.save(p, np.array([{}], object), allow_pickle=True), "cannot be read"),
    (".npy", lambda p: np.save(p, MAP[0]), "two axes"),
    (".npy", lambda p: np.save(p, np.zeros((2, 12, 16))), "two axes"),
    (".npy", lambda p: np.save(p, np.zeros((0, 16))), "two axes"),
    (".npy", lambda p: np.save(p, np.array(5.0)), "two axes"),
    (".npy", lambda p: np.save(p, MAP.astype(complex)), "scores are numbers"),
    (".npy", lambda p: np.save(p, MAP.astype(str)), "scores are numbers"),
    (".npy", lambda p: np.save(p, MAP * np.nan), "NaN"),
    (".npy", lambda p: np.save(p, MAP[:5]), ""),
    (".npy", lambda p: p.write_bytes(
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
        .ljust(117) + b"\n"), "cannot be read"),
    (".npz", lambda p: p.write_bytes(b""), "cannot be read"),
    (".npz", lambda p: p.write_text("text"), "cannot be read"),
    (".npz", lambda p: truncated(p, lambda q: write_npz(q, x=MAP)), "cannot be read"),
    (".npz", lambda p: write_npz(p, x=MAP, y=MAP), "one array is expected"),
    (".npz", lambda p: write_npz(p), ""),
    (".npz", lambda p: write_npz(p, x=np.zeros((50_000, 50_000), bool)[:1]), ""),
    (".png", lambda p: p.write_bytes(b""), "cannot be read"),
    (".png", lambda p: p.write_text("text"), "cannot be read"),
    (".png", bomb_png, "cannot be read"),
    (".png", lambda p: truncated(p, lambda q: Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (12, 16), dtype=np.uint8)).save(q)), "cannot be read"),
    (".png", lambda p: Image.new("RGB", (16, 12)).save(p), "greyscale"),
    (".png", lambda p: Image.new("P", (16, 12)).save(p), "greyscale"),
    (".h5", lambda p: p.write_bytes(b""), "cannot be read"),
    (".h5", lambda p: p.write_text("text"), "cannot be read"),
    (".h5", lambda p: write_h5(p, lambda f: None), "one array is expected"),
    (".h5", lambda p: write_h5(p, lambda f: f.create_group("g")), "one array is expected"),
    (".h5", lambda p: write_h5(p, lambda f: (f.create_dataset("a", data=MAP), f.create_dataset("b", data=MAP))),
     "one array is expected"),
    (".h5", lambda p: write_h5(p, lambda f: f.create_dataset("a", (10**6, 10**6), "f4", chunks=True)), "pixels"),
    (".h5", h5_external, "another file"),
    (".h5", h5_virtual, "another file"),
    (".h5", h5_link, "another file"),
    (".h5", lambda p: write_h5(p, lambda f: f.__setitem__("x", h5py.SoftLink("/nowhere"))), ""),
    (".npy", os.mkfifo, "no regular file"),
    (".png", os.mkfifo, "no regular file"),
    (".h5", os.mkfifo, "no regular file"),
    (".npy", lambda p: p.symlink_to("nowhere"), "no regular file"),
    (".npy", lambda p: p.symlink_to(p.name), "no regular file"),
    (".npy", lambda p: p.symlink_to("/dev/zero"), "no regular file"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "write", "word"), SCORES, ids=range(len(SCORES)))
def test_score_maps(place, suffix, write, word):
    write_scores(place)
    (place / "scores" / "a.npy").unlink()
    write(place / "scores" / f"a{suffix}")
    assert_refused(place, ["score", "--scores", "scores", "--masks", "masks"], [f"a{suffix}", word])


MASKS = [
    (lambda p: p.write_bytes(b""), "cannot be read as a mask"),
    (lambda p: p.write_text("text"), "cannot be read as a mask"),
    (bomb_png, "cannot be read as a mask"),
    (lambda p: p.mkdir(), ""),
    (os.mkfifo, "no regular file"),
    (lambda p: p.symlink_to("nowhere"), "no regular file"),
    (lambda p: p.symlink_to("/dev/zero"), "no regular file"),
    (lambda p: Image.new("RGB", (16, 12)).save(p), "one channel"),
    (lambda p: Image.new("L", (16, 12), 7).save(p), "mask values [7] are not defined"),
    (lambda p: Image.new("F", (16, 12), 0.5).save(p, "TIFF"), "a mask holds whole numbers"),
    (lambda p: Image.new("L", (3, 4), 0).save(p), ""),
    (lambda p: Image.new("I;16", (16, 12), 1000).save(p), "mask values [1000]"),
]


@pytest.mark.parametrize(("write", "word"), MASKS, ids=range(len(MASKS)))
def test_masks(place, write, word):
    write_scores(place)
    (place / "masks" / "a.png").unlink()
    write(place / "masks" / "a.png")
    assert_refused(place, ["score", "--scores", "scores", "--masks", "masks"], [word])


RESULTS = [
    (key, new)
    for key in ("format", "name", "sets", "sets/scores", "sets/scores/task", "sets/scores/scores",
                "sets/scores/scores/scores", "sets/scores/scores/scores/auroc", "sets/scores/scores/scores/ap",
                "sets/scores/scores/scores/fpr95", "sets/scores/scores/scores/curve",
                "sets/scores/scores/scores/curve/tpr", "sets/scores/scores/scores/curve/thresholds")
    for new in (DELETE, None, "x", [], {"a": 1}, True)
    if not (new is DELETE and key in ("sets/scores", "sets/scores/scores/scores/curve"))
    and not (new == "x" and key == "name")
]  # fmt: skip


@pytest.mark.parametrize(("key", "new"), RESULTS, ids=lambda each: str(each)[:30])
@pytest.mark.parametrize("command", ["compare", "report"])
def test_results(place, world, key, new, command):
    whole = json.loads((world / "results.json").read_text())
    (place / "bad.json").write_text(json.dumps(changed(whole, key, new)))
    assert_refused(place, [command, "bad.json"], ["bad.json"])


def test_results_without_versions_are_reported(place, world):
    whole = json.loads((world / "results.json").read_text())
    (place / "old.json").write_text(json.dumps(changed(whole, "versions", DELETE)))
    outcome = invoke("report", "old.json")
    assert outcome.code == 0, outcome.err
    assert "# versions" not in (place / "report.html").read_text()
    (place / "old.json").write_text(json.dumps(whole))
    assert invoke("report", "old.json").code == 0
    assert "# versions" in (place / "report.html").read_text()


JSONS = [
    b"",
    b"{",
    b"[]",
    b"5",
    b"null",
    b"\xff",
    b"[" * 5000,
    b'{"format": 1}',
    b'{"a": ' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("content", JSONS, ids=range(len(JSONS)))
@pytest.mark.parametrize("command", ["compare", "report"])
def test_results_that_are_no_json(place, content, command):
    (place / "bad.json").write_bytes(content)
    assert_refused(place, [command, "bad.json"], ["bad.json"])


@pytest.mark.parametrize("content", JSONS, ids=range(len(JSONS)))
def test_configurations_of_weights_that_are_no_json(place, world, content):
    copied(world / "run" / "final", place / "model")
    (place / "model" / "config.json").write_bytes(content)
    assert_refused(place, ["predict", world / PICTURE, "-m", "model"], ["config.json"])


WEIGHTS_CONFIG = [
    *((key, DELETE) for key in ("library", "format", "num_classes", "recipe", "label_names", "colours",
                                "recipe/source", "recipe/name", "recipe/num_classes", "recipe/head")),
    *(("num_classes", new) for new in (0, -1, 2, 256, 10**12, "3", None, [], True, 3.5)),
    *(("recipe", new) for new in (None, 5, "x", [], {})),
    *(("recipe/source", new) for new in (None, "x", 5, [], "smp", "transformers", "torchvision", "reference")),
    *(("recipe/name", new) for new in (None, "x", 5, [], "../x")),
    *(("recipe/num_classes", new) for new in (None, "x", 0, -1, 2, [])),
    *(("recipe/head", new) for new in (None, 5, "x", [], {}, {"x": 1})),
    *(("recipe/head/components", new) for new in (0, -1, "5", None, 2.5, 3, 10**12)),
    *(("recipe/head/dim", new) for new in (0, 1, -1, "8", None, 9)),
    *(("recipe/head/kind", new) for new in ("x", None, "softmax")),
    *(("recipe/head/link", new) for new in ("x", None)),
    ("recipe/head/temperature", 0), ("recipe/head/temperature", "nan"), ("recipe/head/extra", 1),
    *(("label_names", new) for new in ("abc", ["a"], [1, 2, 3], {"a": 1}, 5)),
    *(("colours", new) for new in ([[0, 0, 0]], [[0, 0]] * 3, [[0, 0, 999]] * 3, [["a", "b", "c"]] * 3, 5, "x")),
    *(("threshold", new) for new in ("x", [], float("nan"), float("inf"), True)),
    *(("temperature", new) for new in (0, -1, "x", None, float("nan"), float("inf"))),
    *(("typical", new) for new in ("x", [1.0], [float("nan")] * 3, ["a", "b", "c"], 5)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "new"), WEIGHTS_CONFIG, ids=lambda each: str(each)[:30])
def test_configurations_of_weights(place, world, key, new):
    copied(world / "run" / "final", place / "model")
    path = place / "model" / "config.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text()), key, new)))
    assert_refused(place, ["predict", world / PICTURE, "-m", "model"], ["model"])


CALIBRATION = [
    *((key, DELETE) for key in ("library", "format", "weights", "thresholds", "temperature", "typical", "data",
                                "time", "thresholds/pixels/value", "data/classes")),
    *(("thresholds/pixels/value", new) for new in ("x", [], float("nan"), float("inf"), True, None)),
    *(("thresholds", new) for new in ("x", [], None, {"pixels": 1.0}, {"pixels": {}})),
    *(("temperature", new) for new in (0, -1, "x", None, float("nan"), float("inf"))),
    *(("typical", new) for new in ("x", [1.0], [float("nan")] * 3, ["a", "b", "c"], 5)),
    *(("weights", new) for new in ("", None, "000000000000", 5)),
    *(("quantiles", new) for new in (5, [1.0], [[0.5, float("nan")]], [["a", 1.0]])),
    *(("data", new) for new in (5, [], {}, {"name": "x"})),
    *(("false_alarms", new) for new in (5, {"pixel": 1}, {"pixel": {"images": 3, "levels": [1.0], "rates": []}})),
    *(("thresholds/pixels/false_alarms", new) for new in (5, {"alpha": 2}, {"per": "x"}, {})),
    ("format", 3), ("surprise", 1),
]  # fmt: skip


@pytest.mark.parametrize(("key", "new"), CALIBRATION, ids=lambda each: str(each)[:30])
def test_calibrations(place, world, key, new):
    copied(world / "run" / "final", place / "model")
    path = place / "model" / "calibration.json"
    path.write_text(json.dumps(changed(json.loads(path.read_text()), key, new)))
    assert_refused(place, ["predict", world / PICTURE, "-m", "model"], ["calibration.json"])


@pytest.mark.parametrize("content", JSONS, ids=range(len(JSONS)))
def test_calibrations_that_are_no_json(place, world, content):
    copied(world / "run" / "final", place / "model")
    (place / "model" / "calibration.json").write_bytes(content)
    assert_refused(place, ["predict", world / PICTURE, "-m", "model"], ["calibration.json"])


WEIGHTS = [
    (lambda p: p.write_bytes(b""), "empty"),
    (lambda p: p.write_text("text"), "not a whole safetensors file"),
    (lambda p: p.unlink(), "no such file"),
    (lambda p: (p.unlink(), p.mkdir()), "no such file"),
    (lambda p: p.write_bytes(p.read_bytes()[:100]), "not a whole safetensors file"),
    (lambda p: p.write_bytes(p.read_bytes()[:-10]), "not a whole safetensors file"),
    (lambda p: p.write_bytes(b"\xff" * 8 + p.read_bytes()[8:]), "not a whole safetensors file"),
    (lambda p: p.write_bytes(p.read_bytes() + b"more"), "not a whole safetensors file"),
    (lambda p: save_file({"x": torch.zeros(1)}, p), "does not fit the architecture"),
    (lambda p: save_file({}, p), "does not fit the architecture"),
    (lambda p: (p.unlink(), p.symlink_to("nowhere")), "no such file"),
    (lambda p: (p.unlink(), os.mkfifo(p)), "no such file"),
]


@pytest.mark.parametrize(("spoil", "word"), WEIGHTS, ids=range(len(WEIGHTS)))
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_weights(place, world, spoil, word, command):
    copied(world / "run" / "final", place / "model")
    spoil(place / "model" / "model.safetensors")
    words = {
        "predict": ["predict", world / PICTURE, "-m", "model"],
        "evaluate": ["evaluate", "model", "-d", f"folder:{world / 'data'}"],
    }[command]
    assert_refused(place, words, ["model/model.safetensors", word])


class Evil:
    def __reduce__(self):
        return (os.system, ("touch stolen",))


CHECKPOINTS = [
    (lambda p: p.write_bytes(b""), "empty"),
    (lambda p: p.write_text("this is no checkpoint\n"), "not a whole file of weights"),
    (lambda p: p.write_bytes(bytes(range(256))), "not a whole file of weights"),
    (lambda p: torch.save({"state_dict": {}}, p), "not a checkpoint of the reference project"),
    (lambda p: torch.save([1, 2], p), "expected a dict"),
    (lambda p: torch.save({}, p), "not a checkpoint of the reference project"),
    (
        lambda p: torch.save({"decode_head.means": torch.zeros(3)}, p),
        "not a checkpoint of the reference project",
    ),
    (lambda p: torch.save({"decode_head.means": torch.zeros(3, 2, 4)}, p), "it has no"),
    (
        lambda p: torch.save({"state_dict": {1: torch.zeros(1)}}, p),
        "not a checkpoint of the reference project",
    ),
    (lambda p: truncated(p, lambda q: torch.save({"a": torch.zeros(99)}, q)), "not a whole file of weights"),
    (lambda p: torch.save({"a": Evil()}, p), "refused"),
    (lambda p: p.mkdir(), "no such file"),
    (os.mkfifo, "no such file"),
    (lambda p: zipfile.ZipFile(p, "w").close(), "not a whole file of weights"),
]


@pytest.mark.parametrize(("write", "word"), CHECKPOINTS, ids=range(len(CHECKPOINTS)))
def test_reference_checkpoints(place, write, word):
    write(place / "bad.pth")
    assert_refused(place, ["import", "bad.pth", "--out", "out"], ["bad.pth", word])
    assert not (place / "stolen").exists()


TOO_FEW = {
    "check": "undefined label value",
    # Two of the model's three classes are brought into its order by name; a label beyond them is none.
    "evaluate": "label values this data set does not define",
    "fit": "label values this data set does not define",
}
DATA = [
    # which file of the set, what becomes of it, words of the message
    ("classes.txt", lambda p: p.unlink(), "classes.txt: missing"),
    ("classes.txt", lambda p: p.write_bytes(b""), "classes.txt: must hold one different class name"),
    ("classes.txt", lambda p: p.write_bytes(b"a\xff\nb\nc"), "classes.txt: is not UTF-8"),
    ("classes.txt", lambda p: p.write_bytes(b"a\n\nb\n"), "without empty lines"),
    ("classes.txt", lambda p: p.write_bytes(b"a\na\nb\n"), "one different class name"),
    ("classes.txt", lambda p: p.write_bytes(b"a\n\x1b[31m\nb\n"), "control characters"),
    ("classes.txt", lambda p: p.write_text("\n".join(map(str, range(300)))), "at most 255 classes"),
    ("classes.txt", lambda p: (p.unlink(), p.mkdir()), "classes.txt: missing"),
    ("classes.txt", lambda p: p.write_text("sky\ngrass"), TOO_FEW),
    ("labels/val/0.png", lambda p: p.unlink(), "0.png: missing"),
    ("labels/val/0.png", lambda p: p.write_bytes(b""), "0.png: cannot be read"),
    ("labels/val/0.png", lambda p: p.write_text("text"), "0.png: cannot be read"),
    ("labels/val/0.png", bomb_png, "0.png: cannot be read"),
    ("labels/val/0.png", lambda p: Image.new("L", SIZE[::-1], 77).save(p), "77 (1536 pixels)"),
    ("labels/val/0.png", lambda p: Image.new("RGB", SIZE[::-1]).save(p), "0.png: has 3 channels"),
    ("labels/val/0.png", lambda p: Image.new("F", SIZE[::-1], 0.5).save(p, "TIFF"), "0.png: holds float32"),
    ("labels/val/0.png", lambda p: Image.new("L", (5, 5)).save(p), "0.png"),
    ("labels/val/0.png", lambda p: (p.unlink(), p.mkdir()), "0.png: missing"),
    ("labels/val/0.png", lambda p: (p.unlink(), os.mkfifo(p)), "0.png: missing"),
    ("labels/val/0.png", lambda p: (p.unlink(), p.symlink_to("0.png")), "0.png: missing"),
    ("images/val/0.png", lambda p: p.unlink(), "a label file without an image"),
    ("images/val/0.png", lambda p: p.write_bytes(b""), "0.png: cannot be read"),
    ("images/val/0.png", lambda p: p.write_text("text"), "0.png: cannot be read"),
    ("images/val/0.png", bomb_png, "0.png: cannot be read"),
    ("images/val/0.png", lambda p: p.write_bytes(p.read_bytes()[:300]), "0.png: cannot be read"),
    ("images/val/0.png", lambda p: Image.new("RGB", (5, 5)).save(p), "0.png"),
    ("images/val/0.png", lambda p: (p.unlink(), os.mkfifo(p)), "0.png: missing"),
    ("images/val/0.png", lambda p: (p.unlink(), p.symlink_to("nowhere")), "0.png: missing"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "spoil", "word"), DATA, ids=range(len(DATA)))
@pytest.mark.parametrize("command", ["check", "evaluate", "fit"])
def test_data_sets(place, world, file, spoil, word, command):
    copied(world / "data", place / "data")
    spoil(place / "data" / file)
    word = word[command] if isinstance(word, dict) else word
    if command == "check":
        assert_refused(place, ["data", "check", "folder", "data"], [word])
    elif command == "evaluate":
        assert_refused(
            place, ["evaluate", world / "run", "-d", "folder:data:val", "--out", "out.json"], [word]
        )
    else:
        words = [
            "fit",
            world / "run",
            "-d",
            "folder:data:val",
            "--components",
            1,
            "--passes",
            1,
            "--out",
            "out",
        ]
        assert_refused(place, words, [word])


@pytest.mark.parametrize("command", ["check", "train", "evaluate", "calibrate"])
def test_a_set_in_which_everything_is_ignored(place, world, command):
    write_data(place / "data", labels=255)
    copied(world / "run", place / "run")
    words = {
        "check": ["data", "check", "folder", "data"],
        "train": ["train", "folder", "data.root=data", *TINY, "--cpu", "--out", "new"],
        "evaluate": ["evaluate", "run", "-d", "folder:data:val", "--out", "out.json"],
        "calibrate": ["calibrate", "run", "-d", "folder:data:val"],
    }
    expected = ["no pixel has a label"] if command in ("check", "train") else ["label"]
    assert_refused(place, words[command], expected)


def test_a_set_with_one_class_is_trained_and_judged(place):
    write_data(place / "data", classes=("all",))
    assert invoke("train", "folder", "data.root=data", *TINY, "--cpu", "--out", "run").code == 0
    assert invoke("evaluate", "run", "-d", "folder:data:val").code == 0
    (judged,) = json.loads((place / "run" / "results.json").read_text())["sets"].values()
    assert judged["metrics"]["miou"] == judged["metrics"]["pixel_accuracy"] == 1.0
    assert invoke("report", "run", "-d", "folder:data:val").code == 0
    assert (place / "report.html").is_file()


IMAGES = [
    (lambda p: p.write_bytes(b""), "not a readable image"),
    (lambda p: p.write_text("text"), "not a readable image"),
    (bomb_png, "bad.png"),
    (lambda p: truncated(p, lambda q: Image.effect_noise((64, 64), 9).save(q)), "not a readable image"),
]


@pytest.mark.parametrize(("write", "word"), IMAGES, ids=range(len(IMAGES)))
def test_images_to_predict(place, world, write, word):
    write(place / "bad.png")
    outcome = invoke("predict", "bad.png", "-m", world / "run")
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert "not done: bad.png" in outcome.err
    assert "bad.png: bad.png" not in outcome.err
    assert word in outcome.err


LOGS = [
    b'{"step": 1, "kind": "tra', b"nonsense\n", b"[1]\n5\nnull\n", b'{"step": 1}\n', b"\xff\xfe\n", b"",
    b'{"step": "x", "kind": "train", "posterior": 1}\n', b'{"step": 1, "kind": "train", "posterior": "x"}\n',
    b'{"step": 1, "kind": "train", "posterior": [1]}\n', b'{"step": 1, "kind": "train", "em": 5}\n',
    b'{"step": 1, "kind": "train", "em": {"fill": "x"}}\n', b'{"step": 1, "kind": 5}\n',
]  # fmt: skip


def test_broken_lines_in_a_log_do_not_keep_the_report_from_being_written(place, world):
    copied(world / "run", place / "run")
    with (place / "run" / "log.jsonl").open("ab") as file:
        file.write(b"\n".join(LOGS))
    outcome = invoke("report", "run")
    assert outcome.code == 0, outcome.err
    assert (place / "report.html").is_file()


COCO = [
    ("imageLists/train.txt", lambda p: p.unlink(), "train.txt: missing"),
    ("imageLists/train.txt", lambda p: p.write_bytes(b"\xff"), "train.txt: is not UTF-8"),
    ("imageLists/train.txt", lambda p: p.write_text("../../x"), "names files outside the release"),
    ("imageLists/train.txt", lambda p: p.write_text("/etc/passwd"), "names files outside the release"),
    ("imageLists/train.txt", lambda p: p.write_text("absent"), "absent.jpg: missing"),
    ("annotations/a.mat", lambda p: p.write_bytes(b""), "a.mat: cannot be read"),
    ("annotations/a.mat", lambda p: p.write_text("text" * 100), "a.mat: cannot be read"),
]


@pytest.mark.parametrize(("file", "spoil", "word"), COCO, ids=range(len(COCO)))
def test_raw_coco_stuff(place, file, spoil, word):
    for folder in ("imageLists", "annotations", "images"):
        (place / "raw" / folder).mkdir(parents=True)
    for split in ("train", "test"):
        (place / "raw" / "imageLists" / f"{split}.txt").write_text("a")
    (place / "raw" / "images" / "a.jpg").write_bytes(b"jpeg")
    spoil(place / "raw" / file)
    outcome = invoke("data", "convert-coco-stuff", "raw", "out")
    assert outcome.code == 1
    assert len(outcome.messages) == 1
    assert word in outcome.messages[0]
    assert not list((place / "out").rglob("*.png"))
