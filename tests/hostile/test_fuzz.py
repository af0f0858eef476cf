"""A fuzzer: files of every kind with bytes, numbers and words changed at random, the same ones in each run."""

import contextlib
import json
import os
import random
import shutil
import time
from collections import Counter

import pytest
import yaml
from harness import Hang, invoke, time_limit, write_scores
from PIL import Image

from gmmseg import cli
from gmmseg.training.checkpoint import CheckpointError, load_checkpoint

CASES = int(os.environ.get("GMMSEG_FUZZ_CASES", "10000"))
VALUES = [None, True, -1, 0, 1, 2**31, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../x", "$\\x$",
          "\x1b[31m", [], [1], {}, {"a": 1}, "é", "null"]  # fmt: skip


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, a part cut out, repeated, overwritten, or the end cut off."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 64))
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length]
        elif kind == 3:
            data[at : at + length] = rng.randbytes(length)
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def changed_tree(tree, rng: random.Random):
    """One value, key or part of nested dictionaries and lists replaced or taken out."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        if rng.random() < 0.15:
            return {name: value for name, value in tree.items() if name != key}
        return {**tree, key: changed_tree(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.5:
        at = rng.randrange(len(tree))
        return [*tree[:at], changed_tree(tree[at], rng), *tree[at + 1 :]]
    return rng.choice(VALUES)


class Target:
    """A whole file, where its changed copies go, and what is done with them."""

    def __init__(self, path, words, tree=None, dump=None):
        self.path, self.words, self.whole = path, words, path.read_bytes()
        self.tree = tree(self.whole) if tree else None
        self.dump = dump

    def spoil(self, rng):
        if self.tree is not None and rng.random() < 0.7:
            self.path.write_text(self.dump(changed_tree(self.tree, rng)))
        else:
            self.path.write_bytes(changed_bytes(self.whole, rng))

    def run(self):
        """None, or what is wrong with how the command took it."""
        outcome = invoke(*self.words)
        if outcome.code not in (0, 1, 2) or cli.UNEXPECTED in outcome.err or "Traceback" in outcome.err:
            return f"code {outcome.code}: {outcome.err[-300:]}"
        if outcome.code == 1 and len(outcome.messages) > 1:
            return f"{len(outcome.messages)} messages: {outcome.err[-300:]}"
        if "\x1b" in outcome.out + "".join(outcome.messages):
            return "a control character reached the terminal"
        return None


class CheckpointTarget(Target):
    """A checkpoint of a training run: loading it works or raises CheckpointError."""

    def run(self):
        with contextlib.suppress(CheckpointError), time_limit(20):
            load_checkpoint(self.path)


def targets(root, world):
    shutil.copytree(world, root, dirs_exist_ok=True)
    write_scores(root / "more")
    Image.effect_noise((48, 32), 60).convert("RGB").save(root / "image.png")
    Image.effect_noise((48, 32), 60).convert("RGB").save(root / "image.jpg")
    config = root / "config.yaml"
    shutil.copy(root / "run" / "config.yaml", config)
    model, run = root / "run" / "final", root / "run"
    shutil.copytree(model, root / "model")
    predict = ["-m", str(run), "--out", str(root / "out")]
    score = [
        "score",
        "--scores",
        root / "more/scores",
        "--masks",
        root / "more/masks",
        "--out",
        root / "o.json",
    ]
    by_json = {"tree": json.loads, "dump": json.dumps}
    checkpoint = next((run / "checkpoints").glob("*.pt"))
    return [
        Target(root / "image.png", ["predict", root / "image.png", *predict]),
        Target(root / "image.jpg", ["predict", root / "image.jpg", *predict]),
        Target(root / "more/masks/a.png", score),
        Target(root / "more/scores/b.npy", score),
        Target(root / "data/labels/val/0.png", ["data", "check", "folder", root / "data"]),
        Target(root / "data/classes.txt", ["data", "check", "folder", root / "data"]),
        Target(config, ["train", config, "--print-config"], yaml.safe_load, yaml.safe_dump),
        Target(config, ["train", config, "--print-config"], yaml.safe_load, yaml.safe_dump),
        Target(root / "results.json", ["compare", root / "results.json"], **by_json),
        Target(root / "results.json", ["compare", root / "results.json", "--format", "latex"], **by_json),
        Target(root / "model/config.json", ["predict", "absent.png", "-m", root / "model"], **by_json),
        Target(root / "model/model.safetensors", ["predict", "absent.png", "-m", root / "model"]),
        CheckpointTarget(checkpoint, []),
    ]


@pytest.mark.slow
def test_ten_thousand_changed_files_give_no_traceback_and_no_hang(world, tmp_path, monkeypatch, capsys):
    rng, failures, kinds = random.Random(0), [], Counter()
    place = tmp_path / "fuzz"
    place.mkdir()
    monkeypatch.chdir(place)
    every, started, longest = targets(place, world), time.perf_counter(), 0.0
    for number in range(CASES):
        target = every[number % len(every)]
        target.spoil(rng)
        begun = time.perf_counter()
        try:
            fault = target.run()
        except (Exception, Hang) as error:
            fault = f"{type(error).__name__}: {error}"
        longest = max(longest, time.perf_counter() - begun)
        if fault:
            failures.append(f"case {number}, {target.path.name}: {fault}")
            kinds[target.path.name] += 1
        target.path.write_bytes(target.whole)
    with capsys.disabled():
        print(f"\nfuzzer: {CASES} cases, {len(failures)} failures {dict(kinds)}, "
              f"{time.perf_counter() - started:.0f} s, longest {longest:.1f} s")  # fmt: skip
    assert not failures, "\n".join(failures[:20])
