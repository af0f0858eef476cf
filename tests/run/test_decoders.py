"""Several decoders on one frozen backbone, trained side by side: each as alone, one model in the end."""

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

import gmmseg
from gmmseg.config import load_config
from gmmseg.models.pairing import shrink_labels
from gmmseg.run.building import make_crops, make_loader, make_segmenter, make_trainer, training_data
from gmmseg.run.train import train
from gmmseg.training.checkpoint import CheckpointError

SETTINGS = [
    *("data.crop=[24,32]", "data.workers=0", "model.name=light_efficientnet_lite0", "model.weights=null"),
    *("train.steps=4", "train.batch_size=2", "train.warmup_steps=2", "train.validate_every=2"),
    *("train.save_every=2", "train.log_every=1", "train.backbone_multiplier=0", "train.density=false"),
]


@pytest.fixture
def config(root):
    return lambda *overrides: load_config("folder", [f"data.root={root}", *SETTINGS, *overrides])


def final(folder):
    return load_file(folder / "final" / "model.safetensors")


def test_the_own_head_learns_as_it_would_alone_and_the_others_differ_from_it(config, tmp_path):
    train(config("train.decoders=1"), tmp_path / "one", cpu=True)
    train(config("train.decoders=3"), tmp_path / "three", cpu=True)
    one, three = final(tmp_path / "one"), final(tmp_path / "three")
    assert all(torch.equal(three[name], value) for name, value in one.items())
    own = {name for name in one if not name.startswith("features.backbone.")}
    for number in (0, 1):
        prefix = f"companions.{number}."
        others = {name.removeprefix(prefix): each for name, each in three.items() if name.startswith(prefix)}
        assert {name.replace("decoder.", "features.", 1) for name in others} == own
        assert not torch.equal(others["head.mixture.means"], one["head.mixture.means"])
        assert not torch.equal(others["head.link.offset"], torch.zeros_like(one["head.link.offset"])), (
            "learned"
        )
    model = gmmseg.from_pretrained(tmp_path / "three" / "final")
    assert all(bool(each.head.mixture.fitted.any()) for each in model.companions)


def test_of_cached_crops_each_head_has_a_part_to_itself(config, tmp_path):
    """What a head says, its loss and what EM takes of it are those of its part of the batch."""
    chosen = config("train.decoders=3", "train.cached_crops=2", "train.batch_size=1")
    dataset, accelerator = training_data(chosen.data), Accelerator(cpu=True)
    segmenter, crops = make_segmenter(chosen, dataset), make_crops(chosen, tmp_path, dataset)
    loader = make_loader(chosen, dataset, tmp_path, accelerator, crops, heads=3)
    trainer = make_trainer(chosen, segmenter, loader, accelerator, tmp_path, crops=crops)
    crops.make(segmenter)
    loader.set_epoch(0)
    batch = next(iter(loader))
    assert len(batch.labels) == 3
    trainer.network.train()
    layout = crops.layout
    seen = [layout.unpack(rows) for rows in batch.images.split(1)]
    expected = [segmenter.head(segmenter.features.decode(seen[0], layout.size).main).logits]
    others = zip(segmenter.companions, seen[1:], strict=True)
    expected += [each.head(each.decoder.decode(maps, layout.size).main).logits for each, maps in others]
    taken = []
    for learner in trainer.learners:
        learner.em.step = lambda *given, **more: taken.append(given[1])
    found = trainer._forward(batch)
    for part, logits, labels in zip(found, expected, batch.labels.split(1), strict=True):
        assert torch.equal(part.output.logits, logits)
        assert torch.equal(part.labels, labels)
    alone = [each.losses()["posterior"] for each in found]
    terms = trainer.train_step([batch]).terms
    assert terms["posterior"] == pytest.approx(float(sum(alone)) / 3, rel=1e-5)
    cells = [shrink_labels(labels, (3, 4)).flatten() for labels in batch.labels.split(1)]
    assert all(torch.equal(one, other) for one, other in zip(taken, cells, strict=True))


@pytest.mark.parametrize("crops", [0, 2])
def test_a_resumed_run_ends_alike(config, tmp_path, stopped_at_step_3, crops):
    chosen = config("train.decoders=2", f"train.cached_crops={crops}")
    train(chosen, tmp_path / "whole", cpu=True)
    with stopped_at_step_3():
        train(chosen, tmp_path / "cut", cpu=True)
    train(chosen, tmp_path / "cut", resume=tmp_path / "cut", cpu=True)
    whole, cut = final(tmp_path / "whole"), final(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(cut[name], value) for name, value in whole.items())


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.backbone_multiplier=0.1", "model.name=tiny_unet"],
        ["model.name=segformer_mit_b0"],  # its backbone has no maps of its own
        ["train.softmax_steps=2"],
        ["model.name=fcn_resnet101"],  # a part of its decoder is taught by an auxiliary head
    ],
    ids=["trained backbone", "whole network", "warm-up", "auxiliary head"],
)
def test_where_a_backbone_is_trained_or_cannot_be_told_apart_there_is_one_decoder(config, root, overrides):
    chosen = config("train.decoders=3", *overrides)
    assert len(make_segmenter(chosen, training_data(chosen.data)).companions) == 0


def test_a_twin_has_as_many_if_it_is_asked_to(config, tmp_path):
    train(config("train.decoders=2", "preset=softmax"), tmp_path / "twin", cpu=True)
    model = gmmseg.from_pretrained(tmp_path / "twin" / "final")
    assert (model.mixture, [each.settings.kind for each in model.companions]) == (None, ["softmax"])


def test_decoders_beside_one_that_is_trained_already_begin_anew(config, tmp_path):
    """Else all would begin alike, and err alike."""
    train(config("preset=softmax"), tmp_path / "first", cpu=True)
    start = f"model.name={tmp_path / 'first' / 'final'}"
    for preset in ("softmax", "default"):
        chosen = config(f"preset={preset}", "train.decoders=3", start)
        model = make_segmenter(chosen, training_data(chosen.data))
        own = dict(model.features.named_parameters())
        drawn = [dict(each.decoder.named_parameters()) for each in model.companions]
        weight = next(name for name in drawn[0] if own[name].ndim > 1)
        assert not torch.equal(own[weight], drawn[0][weight])
        assert not torch.equal(drawn[0][weight], drawn[1][weight])


def test_a_run_from_before_is_not_resumed_with_more_decoders(config, tmp_path):
    train(config("train.decoders=1"), tmp_path / "run", cpu=True)
    path = max((tmp_path / "run" / "checkpoints").iterdir())
    state = torch.load(path, weights_only=True)
    del state["about"]["train.decoders"], state["em_of_companions"]  # as earlier versions wrote it
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"train.decoders 1 -> 3; resume with those"):
        train(config("train.decoders=3", "train.steps=6"), tmp_path / "run", resume=path, cpu=True)
    train(config("train.decoders=1", "train.steps=6"), tmp_path / "run", resume=path, cpu=True)
