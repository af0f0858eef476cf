"""Two processes train as one does on the same global batch: network, batch norm and mixture, first steps."""

import json
import os
import subprocess
import sys

import pytest
import torch

WORKER = """
import os, signal, sys
from pathlib import Path
import torch
import gmmseg
from accelerate import Accelerator
from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.scenes import Scenes
from gmmseg.data.transforms import training_transform
from gmmseg.labels import IGNORE
from gmmseg.mixture import OnlineEM, PRESETS
from gmmseg.models.companion import companion_of
from gmmseg.models.heads import HEAD_PRESETS, HeadSettings
from gmmseg.training.optim import freeze_backbone, make_optimization
from gmmseg.training.checkpoint import load_checkpoint
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Interrupted, Trainer

out = Path(sys.argv[1])
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
rank, processes = accelerator.process_index, accelerator.num_processes


class HalfLabelled:
    # Of the images of the second process hardly anything is labelled.
    def __init__(self, dataset):
        self.dataset, self.name, self.label_space = dataset, dataset.name, dataset.label_space
        self.split, self.root = dataset.split, dataset.root

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        sample = self.dataset[index]
        if index % 4 > 1:
            sample.labels[5:] = IGNORE
            sample.labels[:, 7:] = IGNORE
        return sample


class InOrder(ShuffledSampler):
    def __iter__(self):
        return iter(range(self.length))


def train(case, head="default", batch_size=4, accumulate=1, backbone_multiplier=1.0, component_weight=0.5,
          decoders=1, save_every=100, resume=None, network=None, signal_at=None, softmax_steps=0):
    torch.manual_seed(0)
    settings = TrainSettings(
        steps=3, batch_size=batch_size // processes, accumulate=accumulate, warmup_steps=0, optimizer="sgd",
        learning_rate=0.05, backbone_multiplier=backbone_multiplier, component_weight=component_weight,
        log_every=1, save_every=save_every, softmax_steps=softmax_steps,
    )
    if network is None:
        segmenter = gmmseg.build("tiny_unet", num_classes=10, head=head)
    else:
        segmenter = gmmseg.convert(network)
    if backbone_multiplier == 0:
        freeze_backbone(segmenter)
    others = []
    for number in range(1, decoders):
        other = gmmseg.build("tiny_unet", num_classes=10, head=head)
        companion = companion_of(other.features, other.head, "decoder", HEAD_PRESETS[head], learns=True)
        segmenter.companions.append(companion)
        others.append(OnlineEM(companion.head.mixture, PRESETS["default"], seed=number))
    scenes = HalfLabelled(Scenes("train", size=(32, 48), length=8))
    dataset = AugmentedDataset(scenes, training_transform((32, 48), scale=(1.0, 1.0)))
    loader = EpochLoader(
        dataset, InOrder(8), settings.batch_size, prepare=accelerator.prepare_data_loader
    )
    em = OnlineEM(segmenter.mixture, PRESETS["default"]) if segmenter.mixture is not None else None
    optimization = make_optimization(
        segmenter, settings, em, accelerator.prepare, em_of_companions=others
    )
    (out / case).mkdir(exist_ok=True)
    drawn = []
    segmenter.features.register_forward_pre_hook(lambda *given: drawn.append(torch.rand(3)))
    trainer = Trainer(segmenter, loader, optimization, accelerator, settings, out / case)
    if resume:
        trainer.load_state_dict(load_checkpoint(resume))
    if signal_at is not None:
        segmenter.features.register_forward_pre_hook(
            lambda *given: os.kill(os.getpid(), signal.SIGINT) if (rank, trainer.step) == signal_at else None
        )
    trainer.run()
    torch.save(drawn, out / case / f"drawn{rank}.pt")
    torch.save(segmenter.state_dict(), out / case / f"rank{rank}.pt")


train("default")
# Batch norm of rows, in the projection.
train("pole", head=HeadSettings(projection="batch_norm", coordinates="pole"))
train("warmed", softmax_steps=2)  # the last step is that of the mixtures
train("frozen", head="softmax", backbone_multiplier=0.0)
train("decoders", backbone_multiplier=0.0, decoders=3)
train("softmax", head="softmax")
train("accumulated", head="softmax", batch_size=2, accumulate=2, backbone_multiplier=0.0)
if processes > 1:
    import segmentation_models_pytorch as smp

    train("whole", head="softmax", save_every=1)
    train("resumed", head="softmax", resume=out / "whole" / "checkpoints" / "step_00000002.pt")
    try:
        train("interrupted", head="softmax", signal_at=(1, 1))  # the second process, in the second step
    except Interrupted as stopped:
        (out / "interrupted" / f"stopped{rank}").write_text(str(stopped))
    train("converted", network=smp.PSPNet("mobilenet_v2", encoder_weights=None, classes=10))
accelerator.end_training()
"""
CASES = ("default", "pole", "warmed", "frozen", "decoders", "softmax", "accumulated")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By number of processes: the run folders of all cases."""
    folder = tmp_path_factory.mktemp("processes")
    script = folder / "worker.py"
    script.write_text(WORKER)
    found = {}
    for processes in (1, 2):
        found[processes] = folder / str(processes)
        found[processes].mkdir()
        launcher = [sys.executable]
        if processes > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, str(script), str(found[processes])], check=True, timeout=240, env=env)
    return found


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(trained, case):
    alone = torch.load(trained[1] / case / "rank0.pt")
    first, second = (torch.load(trained[2] / case / f"rank{rank}.pt") for rank in (0, 1))
    for name, value in alone.items():
        scale = max(1.0, float(value.abs().max()))  # an untrained network has a basis of hundreds
        torch.testing.assert_close(first[name], value, atol=1e-5 * scale, rtol=1e-4, msg=f"{case} {name}")
        assert torch.equal(first[name], second[name]), name


def test_a_converted_network_with_parts_out_of_use_trains(trained):
    """Dropout makes one process differ from two; the two must agree."""
    first, second = (torch.load(trained[2] / "converted" / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    log = (trained[2] / "converted" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [1, 2, 3]


@pytest.mark.parametrize("case", CASES)
def test_the_loss_in_the_log_is_that_of_all_processes(trained, case):
    logs = ((trained[n] / case / "log.jsonl").read_text() for n in (1, 2))
    alone, pair = ([json.loads(line) for line in log.splitlines()] for log in logs)
    assert len(alone) == len(pair) == 3
    for one, two in zip(alone, pair):
        for name in {"loss", "posterior", "likelihood", "component"} & one.keys():
            assert two[name] == pytest.approx(one[name], rel=1e-4)


def test_random_numbers_differ_between_processes_and_steps_and_a_resumed_run_draws_the_same(trained):
    draws = {
        (case, rank): torch.load(trained[2] / case / f"drawn{rank}.pt")
        for case in ("whole", "resumed")
        for rank in (0, 1)
    }
    every = [tuple(draw.tolist()) for rank in (0, 1) for draw in draws["whole", rank]]
    assert len(set(every)) == len(every) == 6
    for rank in (0, 1):
        assert torch.equal(draws["resumed", rank][0], draws["whole", rank][2])
        whole, resumed = (torch.load(trained[2] / case / f"rank{rank}.pt") for case in ("whole", "resumed"))
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_a_signal_to_one_process_stops_all_of_them_at_the_same_step(trained):
    for rank in (0, 1):
        assert (trained[2] / "interrupted" / f"stopped{rank}").read_text().startswith("stopped at step 2")
    assert [each.name for each in (trained[2] / "interrupted/checkpoints").iterdir()] == ["step_00000002.pt"]
