"""The command line in this process, and whole files to spoil: for tables of bad input."""

import contextlib
import io
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from PIL import Image

from gmmseg import cli

CLASSES = ("sky", "grass", "thing")
SIZE = (32, 48)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[str]:
        """What the program itself said on the error stream; progress bars are not among it."""
        return [line for line in self.err.splitlines() if line.startswith("gmmseg: ")]


PATIENCE = 60
"""Seconds after which a command is said to hang."""


class Hang(BaseException):
    """Not an Exception: nothing in the program may take it for a mistake of the user."""


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raises Hang inside once the time is over."""

    def ring(number, frame):
        raise Hang(f"still running after {seconds} s")

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def invoke(*words, patience: float = PATIENCE) -> Outcome:
    """What `gmmseg WORDS` prints and returns; an exception that leaves `main` fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["gmmseg", *map(str, words)]),
        mock.patch.dict(os.environ, {"COLUMNS": "400", "TERM": "dumb"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            with time_limit(patience):
                cli.main()
        except SystemExit as left:
            code = left.code or 0
    return Outcome(code, out.getvalue(), err.getvalue())


def snapshot(folder: Path) -> dict[str, tuple]:
    """Every entry below a folder with its size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        found[str(path.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns if path.is_file() else 0)
    return found


def write_data(root: Path, *, classes=CLASSES, labels=None) -> Path:
    """A data set in a folder: four training images and two for validation."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text("\n".join(classes))
    for split, count in (("train", 4), ("val", 2)):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True)
        for index in range(count):
            ids = rng.integers(0, len(classes), SIZE) if labels is None else np.full(SIZE, labels)
            Image.fromarray(rng.integers(0, 255, (*SIZE, 3), dtype=np.uint8)).save(
                root / "images" / split / f"{index}.png"
            )
            Image.fromarray(ids.astype(np.uint8)).save(root / "labels" / split / f"{index}.png")
    return root


def write_scores(root: Path) -> Path:
    """Score maps in root/scores and masks in root/masks, of three images."""
    rng = np.random.default_rng(1)
    for part in ("scores", "masks"):
        (root / part).mkdir(parents=True)
    for name in "abc":
        mask = np.zeros((12, 16), np.uint8)
        mask[3:6, 4:9], mask[0] = 1, 255
        np.save(root / "scores" / f"{name}.npy", rng.random(mask.shape, np.float32) + mask)
        Image.fromarray(mask).save(root / "masks" / f"{name}.png")
    return root


TINY = (
    "data.crop=[32,48]", "data.workers=0", "model.name=tiny_unet", "model.weights=null",
    "model.head.components=2", "model.head.dim=8", "train.steps=2", "train.batch_size=2",
    "train.warmup_steps=0", "train.log_every=1",
)  # fmt: skip


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def assert_refused(place: Path, words, expected=(), code: int = 1) -> Outcome:
    """The command fails with ``code`` and one line that holds all ``expected`` words; nothing is written."""
    before = snapshot(place)
    outcome = invoke(*words)
    assert outcome.code == code, (outcome.code, outcome.out[-300:], outcome.err[-600:])
    assert "Traceback" not in outcome.err + outcome.out
    assert cli.UNEXPECTED not in outcome.err, outcome.err[-600:]
    text = outcome.err
    if code == 1 and not any(word in outcome.out for word in ("problem",)):
        assert len(outcome.messages) == 1, outcome.err[-600:]
        text = outcome.messages[0]
        assert len(text) < 1500
    for word in expected:
        assert word in text + outcome.out, (word, text[-600:])
    assert snapshot(place) == before, "a refused command has written something"
    return outcome
