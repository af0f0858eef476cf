"""What tests of runs share."""

import os
import signal
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from gmmseg import cli
from gmmseg.training.trainer import Interrupted, Trainer


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Five images to train on and two to validate with: sky over grass."""
    root = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    (root / "classes.txt").write_text("sky\ngrass")
    for split, count in (("train", 5), ("val", 2)):
        for part in ("images", "labels"):
            (root / part / split).mkdir(parents=True)
        for index in range(count):
            labels = np.zeros((24, 32), np.uint8)
            labels[rng.integers(6, 18) :] = 1
            colours = np.array([(90, 140, 230), (60, 150, 60)])
            image = np.clip(colours[labels] + rng.normal(0, 12, (24, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(image).save(root / "images" / split / f"{index}.png")
            Image.fromarray(labels).save(root / "labels" / split / f"{index}.png")
    return root


@pytest.fixture
def stopped_at_step_3(monkeypatch):
    """A context in which a run is asked to stop, by Ctrl-C, when its third step is done; it must do so."""

    @contextmanager
    def stopping():
        report = Trainer._report

        def stop(trainer, *given):
            report(trainer, *given)
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_report", stop)
            with pytest.raises(Interrupted):
                yield

    return stopping


@pytest.fixture
def gmmseg_command(monkeypatch, capsys):
    """`gmmseg WORDS` in this process: the exit code, what it prints and what it remarks."""

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["gmmseg", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return command
