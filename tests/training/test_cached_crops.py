"""Cached crops: the same training as without them, from a file that is whole or not there."""

import errno
import json
import os
import re
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.samplers import ClassBalancedSampler, class_counts
from gmmseg.data.scenes import Scenes
from gmmseg.data.transforms import training_transform
from gmmseg.mixture import OnlineEM
from gmmseg.models import zoo
from gmmseg.models.features import FeatureExtractor, Features, SplitFeatures
from gmmseg.models.heads import head_settings
from gmmseg.models.pairing import shrink_labels
from gmmseg.samples import collate
from gmmseg.training import cached_crops
from gmmseg.training.cached_crops import (
    ABOUT_FILE,
    CROPS_FILE,
    CachedCrops,
    CropLayout,
    NoRoomForCrops,
    OnCachedMaps,
    collate_crops,
    remove_crops,
    splittable,
)
from gmmseg.training.checkpoint import find_checkpoint, load_checkpoint
from gmmseg.training.optim import freeze_backbone, make_optimization
from gmmseg.training.train_settings import TrainSettings
from gmmseg.training.trainer import Trainer

SIZE = (32, 48)
SETTINGS = TrainSettings(
    steps=6, batch_size=2, log_every=1, save_every=3, warmup_steps=2, backbone_multiplier=0.0, cached_crops=2
)


class SmallFeatures(SplitFeatures):
    """A backbone with batch norm and maps of two resolutions, under a decoder of one convolution."""

    out_channels, stride = 16, 4

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU()), nn.Conv2d(8, 12, 3, 2, 1)
        )
        self.decoder = nn.Conv2d(20, 16, 3, padding=1)

    def backbone_maps(self, images):
        fine = self.backbone[0](images)
        return fine, self.backbone[1](fine)

    def decode(self, maps, image_size):
        fine, coarse = maps
        coarse = nn.functional.interpolate(coarse, fine.shape[-2:])
        return Features(self.decoder(torch.cat([fine, coarse], 1)).relu())


class Whole(FeatureExtractor):
    """The same in one step."""

    out_channels, stride = 16, 4

    def __init__(self, features):
        super().__init__()
        self.backbone = features


SCENES = [Scenes("train", size=SIZE)[index] for index in range(6)]


class Few:
    """Scenes drawn once for all tests of this file."""

    name, split, root, label_space = "scenes", "train", None, Scenes("train").label_space

    def __len__(self):
        return len(SCENES)

    def __getitem__(self, index):
        return SCENES[index]

    def labels(self, index):
        return SCENES[index].labels


def make_crops(folder, count=2, seed=0, **options):
    augmented = AugmentedDataset(Few(), training_transform(SIZE), seed)
    return CachedCrops(folder, augmented, count, {"seed": seed}, **options)


def make_segmenter(head="default", features=SmallFeatures):
    torch.manual_seed(0)
    segmenter = zoo.assemble(features(), 10, head_settings(head))
    freeze_backbone(segmenter)
    return segmenter


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


EXACT = {"precision": "float32", "label_stride": 1}


def make_trainer(folder, crops=None, settings=SETTINGS, head="default", balanced=False):
    """A run over ``crops``, or over images where there are none."""
    segmenter, accelerator = make_segmenter(head), Accelerator(cpu=True)
    sampler = ShuffledSampler(6)
    if balanced:
        fingerprinted = Scenes("train", size=SIZE, length=6)
        sampler = ClassBalancedSampler(class_counts(fingerprinted), length=6)
    loader = EpochLoader(
        AugmentedDataset(Few(), training_transform(SIZE)) if crops is None else crops,
        sampler,
        settings.batch_size,
        prepare=accelerator.prepare_data_loader,
        collate=collate if crops is None else collate_crops,
    )
    em = OnlineEM(segmenter.mixture) if segmenter.mixture is not None else None
    network = None if crops is None else OnCachedMaps(segmenter, crops)
    optimization = make_optimization(segmenter, settings, em, accelerator.prepare, network)
    return Trainer(segmenter, loader, optimization, accelerator, settings, folder)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


# Round trip -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_maps_come_back_as_they_were_packed(precision, generator):
    layout = CropLayout(((3, 4, 5), (7, 2, 3)), (8, 10), 2, precision)
    maps = [torch.randn(2, *shape, generator=generator) for shape in layout.shapes]
    back = layout.unpack(layout.pack(maps))
    for one, other in zip(maps, back, strict=True):
        assert torch.equal(one.to(getattr(torch, precision)).float(), other)
        assert other.is_contiguous(memory_format=torch.channels_last)
    assert layout.record["labels"].shape == (4, 5)


def test_a_record_is_the_crop_of_its_epoch_through_the_backbone(tmp_path):
    crops, segmenter = make_crops(tmp_path, count=3), make_segmenter()
    crops.make(segmenter)
    plain = AugmentedDataset(Few(), training_transform(SIZE), seed=0)
    for epoch in (0, 2, 4):
        crops.set_epoch(epoch)
        plain.set_epoch(epoch % 3)
        for index in range(6):
            batch, cached = collate([plain[index]]), crops[index]
            with torch.no_grad():
                maps = segmenter.features.backbone_maps(segmenter.normalise(batch.images))
            for one, other in zip(maps, crops.layout.unpack(cached.maps[None]), strict=True):
                torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
            assert torch.equal(cached.labels.long(), shrink_labels(batch.labels, (16, 24))[0])


def test_a_further_visit_in_an_epoch_is_the_next_crop(tmp_path):
    crops = make_crops(tmp_path, count=3)
    crops.make(make_segmenter())
    crops.set_epoch(1)
    second = crops[4 + 6]  # sample 4 again
    crops.set_epoch(2)
    assert torch.equal(second.maps, crops[4].maps)
    assert second.name == "sample 4 crop 2"


def test_networks_in_two_steps_give_what_they_give_in_one():
    for network in (
        partial(zoo.frozen_pyramid, "tf_efficientnet_lite0"),
        partial(zoo.deeplabv3plus, "resnet18", channels=16),
        partial(zoo.fcn, "resnet18", channels=16),
        partial(zoo.frozen_vit, "vit_small_patch14_dinov2", blocks=(0, 1)),
        partial(zoo.ocrnet, "hrnet_w18_small", channels=16),
    ):
        segmenter = make_segmenter("softmax", partial(network, 10, None)).train()
        segmenter.backbone.eval()
        images = torch.rand(2, 3, 50, 70)
        torch.manual_seed(1)
        whole = segmenter(images)
        features = splittable(segmenter)
        maps = features.backbone_maps(segmenter.normalise(images))
        layout = CropLayout(tuple(each.shape[1:] for each in maps), (50, 70), 1, "float32")
        torch.manual_seed(1)
        kept = layout.unpack(layout.pack(maps))
        split = segmenter.on_features(features.decode(kept, (50, 70)), kept, (50, 70))
        torch.testing.assert_close(split.logits, whole.logits, atol=1e-4, rtol=1e-4)
        assert len(split.auxiliary) == len(whole.auxiliary)


# Against training on images ---------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["default", "softmax"])
def test_the_first_epochs_equal_training_on_images(tmp_path, head):
    """Two epochs of three batches, two crops of each image: every crop is new to either run."""
    uncached = make_trainer(tmp_path / "images", head=head)
    uncached.run()
    crops = make_crops(tmp_path / "crops", **EXACT)
    cached = make_trainer(tmp_path / "cached", crops, head=head)
    crops.make(cached.segmenter)
    cached.run()
    assert losses(tmp_path / "cached") == pytest.approx(losses(tmp_path / "images"), rel=1e-5)
    for name, value in uncached.segmenter.state_dict().items():
        torch.testing.assert_close(cached.segmenter.state_dict()[name], value, atol=1e-4, rtol=1e-4)


def test_half_precision_changes_the_loss_by_as_little_as_it_rounds(tmp_path):
    make_trainer(tmp_path / "images").run()
    crops = make_crops(tmp_path / "crops", label_stride=1)
    cached = make_trainer(tmp_path / "cached", crops)
    crops.make(cached.segmenter)
    cached.run()
    assert losses(tmp_path / "cached") == pytest.approx(losses(tmp_path / "images"), rel=2e-3)


def test_the_backbone_stays_as_it_is_and_the_rest_is_trained(tmp_path):
    crops = make_crops(tmp_path / "crops")
    trainer = make_trainer(tmp_path / "run", crops)
    before = {name: value.clone() for name, value in trainer.segmenter.state_dict().items()}
    crops.make(trainer.segmenter)
    trained = trainer.run()
    assert trained is trainer.segmenter
    for name, value in trained.state_dict().items():
        if name.startswith("features."):
            assert torch.equal(value, before[name]) == name.startswith("features.backbone."), name


def test_balanced_sampling_draws_its_own_order(tmp_path):
    crops = make_crops(tmp_path / "crops")
    balanced = make_trainer(tmp_path / "balanced", crops, balanced=True)
    crops.make(balanced.segmenter)
    seen = [name for batch in balanced.loader for name in batch.names]
    order = list(balanced.loader.sampler)
    assert seen == [f"sample {index % 6} crop {index // 6 % 2}" for index in order]
    balanced.run()
    assert len(losses(tmp_path / "balanced")) == 6


# Resuming, reuse, removal -----------------------------------------------------------------------------


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    crops = make_crops(tmp_path / "crops")
    whole = make_trainer(tmp_path / "whole", crops, replace(SETTINGS, steps=8, save_every=5))
    crops.make(whole.segmenter)
    whole.run()
    again = make_crops(tmp_path / "crops")
    resumed = make_trainer(tmp_path / "resumed", again, replace(SETTINGS, steps=8))
    resumed.load_state_dict(load_checkpoint(tmp_path / "whole" / "checkpoints" / "step_00000005.pt"))
    again.make(resumed.segmenter)
    resumed.run()
    for name, value in whole.segmenter.state_dict().items():
        assert torch.equal(resumed.segmenter.state_dict()[name], value), name
    assert find_checkpoint(tmp_path / "resumed").name == "step_00000008.pt"


def test_the_file_is_used_again_for_the_same_and_made_anew_for_anything_else(tmp_path):
    said = []
    segmenter = make_segmenter()
    make_crops(tmp_path).make(segmenter, say=said.append)
    first = (tmp_path / CROPS_FILE).stat()
    assert f"{first.st_size:,} bytes" in said[0]
    make_crops(tmp_path).make(segmenter, say=said.append)
    assert (tmp_path / CROPS_FILE).stat().st_mtime_ns == first.st_mtime_ns
    assert "used again" in said[1]
    with torch.no_grad():
        segmenter.backbone[1].bias += 1
    for number, crops in enumerate((make_crops(tmp_path), make_crops(tmp_path, seed=1))):
        crops.make(segmenter, say=said.append)
        assert "caching" in said[2 + number]
    (tmp_path / CROPS_FILE).write_bytes(b"cut short")
    make_crops(tmp_path, seed=1).make(segmenter, say=said.append)
    assert "caching" in said[4]


@pytest.mark.parametrize("where", [0, 700, -1])
def test_a_file_of_the_right_size_with_a_flipped_bit_is_made_anew(tmp_path, where):
    crops, segmenter, said = make_crops(tmp_path), make_segmenter(), []
    crops.make(segmenter)
    whole = (tmp_path / CROPS_FILE).read_bytes()
    damaged = bytearray(whole)
    damaged[where] ^= 1
    (tmp_path / CROPS_FILE).write_bytes(damaged)
    make_crops(tmp_path).make(segmenter, say=said.append)
    assert "caching" in said[0]
    assert (tmp_path / CROPS_FILE).read_bytes() == whole


def test_removal_leaves_nothing_and_foreign_files_alone(tmp_path):
    make_crops(tmp_path / "crops").make(make_segmenter())
    assert sorted(path.name for path in (tmp_path / "crops").iterdir()) == [CROPS_FILE, ABOUT_FILE]
    remove_crops(tmp_path / "crops")
    assert not (tmp_path / "crops").exists()
    remove_crops(tmp_path / "crops")
    (tmp_path / "crops").mkdir()
    (tmp_path / "crops" / "notes.txt").write_text("mine")
    remove_crops(tmp_path / "crops")
    assert (tmp_path / "crops" / "notes.txt").exists()


# Refusals ---------------------------------------------------------------------------------------------


def test_a_backbone_that_is_trained_is_refused(tmp_path):
    segmenter = make_segmenter()
    segmenter.backbone.requires_grad_(True)
    with pytest.raises(ValueError, match=r"train\.backbone_multiplier=0"):
        make_crops(tmp_path / "crops").make(segmenter)
    assert not (tmp_path / "crops").exists()


def test_a_network_that_cannot_be_split_is_refused(tmp_path):
    segmenter = make_segmenter()
    segmenter.features = Whole(segmenter.features)
    freeze_backbone(segmenter)
    with pytest.raises(ValueError, match=r"Whole.*train\.cached_crops=0"):
        make_crops(tmp_path).make(segmenter)


def test_crops_that_were_not_made_are_not_read(tmp_path):
    with pytest.raises(RuntimeError, match="not made yet"):
        make_crops(tmp_path)[0]


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(100, 0, 100)
    monkeypatch.setattr(cached_crops.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NoRoomForCrops, match=r"needs [\d,]+ bytes.*100 bytes.*lower train.cached_crops"):
        make_crops(tmp_path / "crops").make(make_segmenter())
    assert not (tmp_path / "crops").exists()


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EFBIG, "may not be that large"),
    ],
)
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, monkeypatch, number, what):
    def full(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cached_crops.os, "fsync", full)
    with pytest.raises(NoRoomForCrops, match=rf"needs [\d,]+ bytes.*{what}.*lower"):
        make_crops(tmp_path / "crops").make(make_segmenter())
    assert not (tmp_path / "crops").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_write_to_a_full_device_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(CachedCrops, "_reserve", lambda crops, path: path.symlink_to("/dev/full"))
    (tmp_path / "crops").mkdir()
    with pytest.raises(NoRoomForCrops, match="the disk is full"):
        make_crops(tmp_path / "crops").make(make_segmenter())
    assert not (tmp_path / "crops").exists()


def test_an_interrupted_make_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(crops, maps, batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(CachedCrops, "_records", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_crops(tmp_path / "crops").make(make_segmenter())
    assert not (tmp_path / "crops").exists()


def test_maps_beyond_half_precision_are_refused(tmp_path):
    segmenter = make_segmenter()
    with torch.no_grad():
        segmenter.backbone[1].bias += 1e6
    with pytest.raises(ValueError, match=r"float16.*train\.cached_crops=0"):
        make_crops(tmp_path / "crops").make(segmenter)
    assert not (tmp_path / "crops").exists()


# Several processes ------------------------------------------------------------------------------------

WORKER = """
import shutil, sys
from pathlib import Path
import torch
from accelerate import Accelerator
from gmmseg import distributed

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
sys.path.insert(0, sys.argv[2])
import test_cached_crops as case
from dataclasses import replace

out = Path(sys.argv[1])
settings = replace(case.SETTINGS, batch_size=2 // accelerator.num_processes, optimizer="sgd", steps=4)
case.cached_crops._BLOCK = 2  # so that either process has some of six samples
crops = case.make_crops(out / "crops")
trainer = case.make_trainer(out / "run", crops, settings)
crops.make(trainer.segmenter)
trainer.run()
torch.save(trainer.segmenter.state_dict(), out / f"rank{accelerator.process_index}.pt")
crops = case.make_crops(out / "refused")
if accelerator.process_index == 1:
    crops._records = lambda maps, batch: 1 / 0  # the second process fails, the first must not wait for it
full = case.make_crops(out / "refused")
if accelerator.process_index == 1:
    full._records = case.no_space
if accelerator.num_processes > 1:
    for number, failing in enumerate((crops, full)):
        try:
            failing.make(trainer.segmenter)
        except (ZeroDivisionError, OSError) as error:
            (out / f"error{number}{accelerator.process_index}").write_text(str(error))
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """By number of processes: what the worker has left."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "worker.py").write_text(WORKER)
    found = {}
    for number in (1, 2):
        found[number] = folder / str(number)
        found[number].mkdir()
        launcher = [sys.executable]
        if number > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
        command = [*launcher, str(folder / "worker.py"), str(found[number]), str(Path(__file__).parent)]
        subprocess.run(command, check=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return found


def test_two_processes_make_the_crops_that_one_makes(processes):
    one, two = ((processes[number] / "crops" / CROPS_FILE).read_bytes() for number in (1, 2))
    assert one == two


def test_two_processes_train_on_crops_as_one_does(processes):
    alone = torch.load(processes[1] / "rank0.pt")
    first, second = (torch.load(processes[2] / f"rank{rank}.pt") for rank in (0, 1))
    for name, value in alone.items():
        scale = max(1.0, float(value.abs().max()))
        torch.testing.assert_close(first[name], value, atol=1e-5 * scale, rtol=1e-4, msg=name)
        assert torch.equal(first[name], second[name]), name


def test_a_process_that_fails_stops_all_and_nothing_is_left(processes):
    assert "another process" in (processes[2] / "error00").read_text()
    assert "division" in (processes[2] / "error01").read_text()
    first, second = ((processes[2] / f"error1{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert re.search(r"needs [\d,]+ bytes.*the disk is full", first)
    assert not (processes[2] / "refused").exists()
