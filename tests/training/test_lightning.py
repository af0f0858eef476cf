"""The example for Lightning: EM goes into its checkpoints and comes back out of them."""

import runpy
from pathlib import Path

import pytest
import torch

import gmmseg
from gmmseg.data import Scenes
from gmmseg.training import TrainSettings

pytest.importorskip("pytorch_lightning", reason="the example needs the extra lightning")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning.py"
DATASET = Scenes("train", size=(32, 48), length=6)
SETTINGS = TrainSettings(steps=8, batch_size=2, learning_rate=5e-3, warmup_steps=2, save_every=4)


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def module_of(example):
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", class_names=DATASET.label_space.names)
    return example["GenerativeSegmenter"](segmenter, DATASET, SETTINGS)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers, loggers and folders
def test_a_resumed_run_is_the_uninterrupted_one(example, tmp_path):
    whole, first, second = (module_of(example) for _ in range(3))
    example["train"](whole, tmp_path / "whole")
    example["train"](first, tmp_path / "parts", until=5)  # the checkpoint is of step 4, within an epoch
    example["train"](second, tmp_path / "parts", resume=tmp_path / "parts" / "last.ckpt")
    assert (first.em.steps, second.em.steps, whole.em.steps) == (5, 8, 8)
    for name, value in whole.segmenter.state_dict().items():
        assert torch.equal(value, second.segmenter.state_dict()[name]), name
    for name, value in whole.em.state_dict()["memory"].items():
        assert torch.equal(value, second.em.state_dict()["memory"][name]), name
    assert not torch.equal(whole.segmenter.mixture.means, first.segmenter.mixture.means)
