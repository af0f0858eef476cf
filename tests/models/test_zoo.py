"""Every architecture, in a small size, through the same laws; the full sizes by their parameter counts."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import pytest
import torch
from torch import Tensor

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models import zoo
from gmmseg.models.heads import HEAD_PRESETS, HeadSettings, head_settings
from gmmseg.models.huggingface import segformer, swin_config, swin_mask2former, swin_upernet
from gmmseg.models.masks import mask_segmenter
from gmmseg.models.segmenter import Segmenter

CLASSES = 4
SMALL = HeadSettings(components=2, dim=8)


def _dense(features: Callable) -> Callable[[HeadSettings], Segmenter]:
    return lambda settings: zoo.assemble(features(CLASSES, None), CLASSES, settings)


def _segformer(num_classes: int, weights: None) -> torch.nn.Module:
    return segformer([1, 1, 1, 1], [8, 16, 40, 64], 16)


def _upernet(num_classes: int, weights: None) -> torch.nn.Module:
    return swin_upernet(swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), None, channels=16)


def _mask2former(settings: HeadSettings) -> Segmenter:
    model = swin_mask2former(swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), CLASSES, None)
    return mask_segmenter(model, CLASSES, settings)


VARIANTS: dict[str, Callable[[HeadSettings], Segmenter]] = {
    "tiny_unet": _dense(zoo.tiny_unet),
    "fcn": _dense(partial(zoo.fcn, "resnet18", channels=16)),
    "deeplabv3plus": _dense(partial(zoo.deeplabv3plus, "resnet18", channels=16)),
    "deeplabv3plus_lite": _dense(
        partial(zoo.deeplabv3plus, "tf_efficientnet_lite0", output_stride=16, channels=16)
    ),
    "frozen_pyramid": _dense(partial(zoo.frozen_pyramid, "tf_efficientnet_lite0")),
    "ocrnet": _dense(partial(zoo.ocrnet, "hrnet_w18_small", channels=16)),
    "dinov2": _dense(partial(zoo.frozen_vit, "vit_small_patch14_dinov2", blocks=(0, 1))),
    "dinov3": _dense(partial(zoo.frozen_vit, "vit_small_patch16_dinov3", blocks=(0, 1))),
    "segformer": _dense(_segformer),
    "upernet": _dense(_upernet),
    "mask2former": _mask2former,
}


@pytest.fixture(params=VARIANTS, scope="class")
def build(request: pytest.FixtureRequest) -> Callable[[HeadSettings], Segmenter]:
    def seeded(settings: HeadSettings = SMALL) -> Segmenter:
        torch.manual_seed(0)
        return VARIANTS[request.param](settings)

    return seeded


def batch(height: int = 64, width: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3, height, width, generator=generator)
    labels = torch.randint(
        0, CLASSES - 1, (2, height, width), generator=generator
    )  # the last class is absent
    labels[:, :8] = IGNORE
    return images, labels


class TestEveryArchitecture:
    def test_learns_by_gradient_and_by_em(self, build: Callable) -> None:
        segmenter = build().train()
        images, labels = batch()
        output = segmenter(images)
        sum(segmenter.losses(output, labels, ["component", "likelihood"]).values()).backward()
        without = [
            name
            for name, value in segmenter.named_parameters()
            if value.requires_grad and (value.grad is None or not value.grad.isfinite().all())
        ]
        assert not without

        before = segmenter.mixture.means.clone()
        points, classes, groups, _ = segmenter.em_points(output, labels)
        assert points.shape == (len(classes), SMALL.dim)
        assert groups.unique().tolist() == [0, 1]
        OnlineEM(segmenter.mixture, PRESETS["default"]).step(points, classes, groups)
        moved = (segmenter.mixture.means != before).flatten(1).any(1)
        assert moved[: CLASSES - 1].all(), "classes with points are updated"
        assert not moved[CLASSES - 1], "a class without points is not touched"

    def test_odd_sizes(self, build: Callable) -> None:
        segmenter = build().eval()
        images, _ = batch(61, 75)
        with torch.no_grad():
            output = segmenter(images)
        expected = (2, CLASSES, -(-61 // segmenter.stride), -(-75 // segmenter.stride))
        assert output.logits.shape == output.evidence.shape == expected
        assert output.logits.isfinite().all()
        assert output.evidence.isfinite().all()

    def test_evaluation_is_pure_and_by_image(self, build: Callable) -> None:
        segmenter = build().eval()
        images, _ = batch()
        state = {name: value.clone() for name, value in segmenter.state_dict().items()}
        with torch.no_grad():
            both, first = segmenter(images), segmenter(images[:1])
        torch.testing.assert_close(both.logits[:1], first.logits, rtol=1e-3, atol=1e-4)
        assert not both.auxiliary
        for name, value in segmenter.state_dict().items():
            assert torch.equal(value, state[name]), name

    def test_twin_differs_in_its_head_only(self, build: Callable) -> None:
        generative, twin = build(), build(head_settings("softmax"))
        assert twin.mixture is None
        ours = {name for name in generative.state_dict() if not name.startswith("head.")}
        theirs = {name for name in twin.state_dict() if not name.startswith("head.")}
        assert ours == theirs

    def test_save_and_load(self, build: Callable, tmp_path) -> None:
        segmenter = build().eval()
        images, _ = batch()
        segmenter.save_pretrained(tmp_path)
        torch.manual_seed(9)
        other = build()
        for value in other.parameters():
            torch.nn.init.normal_(value)
        loaded = gmmseg.from_pretrained(tmp_path, architecture=other)
        with torch.no_grad():
            assert torch.equal(loaded(images).logits, segmenter(images).logits)


# In millions, for 150 classes, from the papers of SegFormer (the first three too), Swin and Mask2Former.
PUBLISHED = {
    "fcn_resnet101": 68.6,
    "deeplabv3plus_resnet101": 62.7,
    "ocrnet_hrnet_w48": 70.5,
    "upernet_swin_base": 121.0,
    "segformer_mit_b5": 84.7,
    "mask2former_swin_large": 216.0,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_matches_published_parameter_count(name: str) -> None:
    with torch.device("meta"):
        twin = gmmseg.build(name, num_classes=150, head="softmax")
        generative = gmmseg.build(name, num_classes=150)
    millions = sum(value.numel() for value in twin.parameters()) / 1e6
    assert millions == pytest.approx(PUBLISHED[name], rel=0.004)
    assert generative.num_classes == twin.num_classes == 150


@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_name_builds(name: str) -> None:
    with torch.device("meta"):
        segmenter = gmmseg.build(name, num_classes=7)
    assert segmenter.num_classes == 7
    assert segmenter.recipe["name"] == name
    assert isinstance(segmenter.backbone, torch.nn.Module)


@pytest.mark.parametrize("word", HEAD_PRESETS)
def test_a_preset_gives_the_head_of_that_word_unless_a_head_is_given(word: str) -> None:
    segmenter = gmmseg.build("tiny_unet", num_classes=3, preset=word)
    assert segmenter.recipe["head"] == asdict(HEAD_PRESETS[word])
    assert segmenter.recipe == gmmseg.build("tiny_unet", num_classes=3, head=word).recipe
    own = HeadSettings(components=2, dim=8)
    assert gmmseg.build("tiny_unet", num_classes=3, preset=word, head=own).recipe["head"] == asdict(own)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"unknown preset 'papre': choose paper"):
        gmmseg.build("tiny_unet", num_classes=3, preset="papre")
    with pytest.raises(ValueError, match="unknown preset 'gmm': choose paper"):  # as in a configuration
        gmmseg.build("tiny_unet", num_classes=3, preset="gmm")
    with pytest.raises(ValueError, match=r"unknown network 'resnet'.*tiny_unet"):
        gmmseg.build("resnet", num_classes=3)
    with pytest.raises(ValueError, match="num_classes"):
        gmmseg.build("tiny_unet", num_classes=0)
    with pytest.raises(ValueError, match=r"unknown head 'svm'.*softmax"):
        gmmseg.build("tiny_unet", num_classes=3, head="svm")
    with pytest.raises(ValueError, match="from scratch"):
        gmmseg.build("tiny_unet", num_classes=3, weights="pretrained")


def test_frozen_backbone_stays_frozen() -> None:
    segmenter = VARIANTS["dinov3"](SMALL).train()
    backbone = segmenter.backbone
    assert not any(module.training for module in backbone.backbone.modules())
    assert not any(value.requires_grad for value in backbone.parameters())
