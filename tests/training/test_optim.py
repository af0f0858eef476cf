import pytest
import torch

import gmmseg
from gmmseg.training.optim import freeze_backbone, learning_rate_factor, make_optimizer, parameter_groups
from gmmseg.training.train_settings import TrainSettings


def test_every_trainable_parameter_is_in_exactly_one_group():
    segmenter = gmmseg.build("tiny_unet", num_classes=3)
    for optimizer in ("adamw", "sgd"):
        groups = parameter_groups(segmenter, TrainSettings(optimizer=optimizer))
        ids = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(ids) == sorted(id(parameter) for parameter in segmenter.parameters())


def test_learning_rates_and_decay_by_part():
    segmenter = gmmseg.build("tiny_unet", num_classes=3)
    settings = TrainSettings(
        learning_rate=1.0, backbone_multiplier=0.1, link_multiplier=10.0, weight_decay=0.5
    )
    of = {
        id(parameter): (group["lr"], group["weight_decay"])
        for group in parameter_groups(segmenter, settings)
        for parameter in group["params"]
    }
    backbone_conv = next(p for p in segmenter.backbone.parameters() if p.ndim == 4)
    backbone_norm = next(p for p in segmenter.backbone.parameters() if p.ndim == 1)
    assert of[id(backbone_conv)] == (0.1, 0.5)
    assert of[id(backbone_norm)] == (0.1, 0.0)
    assert of[id(segmenter.head.link.log_temperature)] == (10.0, 0.0)


def test_a_frozen_backbone_is_left_out():
    segmenter = gmmseg.build("tiny_unet", num_classes=3)
    freeze_backbone(segmenter)
    optimizer = make_optimizer(segmenter, TrainSettings(backbone_multiplier=0.0))
    frozen = {id(parameter) for parameter in segmenter.backbone.parameters()}
    assert not any(id(p) in frozen for group in optimizer.param_groups for p in group["params"])


def test_schedules():
    poly = TrainSettings(steps=100, warmup_steps=10, power=1.0)
    assert learning_rate_factor(0, poly) == pytest.approx(0.1)
    assert learning_rate_factor(50, poly) == pytest.approx(0.5)
    assert learning_rate_factor(100, poly) == 0.0
    step = TrainSettings(steps=100, warmup_steps=0, schedule="step", milestones=(0.5, 0.9))
    assert [learning_rate_factor(at, step) for at in (0, 49, 50, 90)] == pytest.approx([1.0, 1.0, 0.1, 0.01])


def test_unknown_choices_are_refused():
    for wrong in ({"optimizer": "adam"}, {"schedule": "cosine"}, {"precision": "half"}, {"steps": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TrainSettings(**wrong)


def test_sgd_takes_its_momentum():
    segmenter = gmmseg.build("tiny_unet", num_classes=3)
    optimizer = make_optimizer(segmenter, TrainSettings(optimizer="sgd", momentum=0.7))
    assert isinstance(optimizer, torch.optim.SGD)
    assert all(group["momentum"] == 0.7 for group in optimizer.param_groups)
