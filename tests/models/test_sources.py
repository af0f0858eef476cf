"""Any network by name: converted, trained, saved, loaded without its source; its twin is the original."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gmmseg
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models import ConversionError, HeadSettings, Segmenter, WeightsError
from gmmseg.models.features import resize

NAMES = ("road", "sky", "car", "tree")
SMALL = HeadSettings(components=2, dim=8)


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16}
    return SegformerForSemanticSegmentation(SegformerConfig(**_labels(), **sizes))


def _upernet() -> nn.Module:
    from transformers import UperNetConfig, UperNetForSemanticSegmentation

    return UperNetForSemanticSegmentation(UperNetConfig(backbone_config=_swin(), hidden_size=16, **_labels()))


def _mask2former() -> nn.Module:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    sizes = {"hidden_dim": 32, "feature_size": 32, "mask_feature_size": 32, "dim_feedforward": 16}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "encoder_feedforward_dim": 16, "num_queries": 6}
    config = Mask2FormerConfig(
        backbone_config=_swin(), num_attention_heads=2, train_num_points=64, **sizes, **layers, **_labels()
    )
    return Mask2FormerForUniversalSegmentation(config)


def _beit() -> nn.Module:
    from transformers import BeitConfig, BeitForSemanticSegmentation

    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
    more = {"image_size": 64, "patch_size": 16, "out_indices": [1, 2, 3, 4], "pool_scales": [1, 2]}
    kept = {"use_relative_position_bias": True, "use_absolute_position_embeddings": False}
    return BeitForSemanticSegmentation(BeitConfig(**sizes, **more, **kept, **_labels()))


def _swin() -> object:
    from transformers import SwinConfig

    stages = ["stage1", "stage2", "stage3", "stage4"]
    return SwinConfig(embed_dim=8, depths=[1] * 4, num_heads=[1, 2, 2, 4], window_size=4, out_features=stages)


def _labels() -> dict[str, object]:
    return {
        "id2label": dict(enumerate(NAMES)),
        "label2id": {name: place for place, name in enumerate(NAMES)},
    }


TRANSFORMERS = {"segformer": _segformer, "upernet": _upernet, "mask2former": _mask2former, "beit": _beit}


def _saved(family: str, folder: Path) -> str:
    """A tiny network of transformers with random weights, as its own library saves it."""
    torch.manual_seed(1)
    TRANSFORMERS[family]().save_pretrained(folder)
    return str(folder)


def _ours(folder: Path) -> str:
    torch.manual_seed(1)
    model = gmmseg.build("tiny_unet", head="softmax", class_names=NAMES)
    model.save_pretrained(folder / "best")
    return str(folder)


SOURCES: dict[str, Callable[[Path], str]] = {
    "hf segformer": lambda folder: _saved("segformer", folder),
    "hf upernet": lambda folder: _saved("upernet", folder),
    "hf mask2former": lambda folder: _saved("mask2former", folder),
    "hf beit": lambda folder: _saved("beit", folder),
    "smp": lambda folder: "smp:FPN/mobilenet_v2",
    "torchvision": lambda folder: "torchvision:lraspp_mobilenet_v3_large",
    "timm cnn": lambda folder: "timm:test_resnet",
    "timm vit": lambda folder: "timm:test_vit@1,5",
    "ours": _ours,
}


def batch() -> tuple[Tensor, Tensor]:
    """Two images of four quarters, each a class of its own colour."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.zeros(2, 64, 64, dtype=torch.long)
    labels[:, :32, 32:], labels[:, 32:, :32], labels[:, 32:, 32:] = 1, 2, 3
    colours = torch.rand(len(NAMES), 3, generator=generator)
    images = colours[labels].movedim(-1, 1) + 0.05 * torch.rand(2, 3, 64, 64, generator=generator)
    return images.clamp(0, 1), labels


def train(segmenter: Segmenter, steps: int) -> list[float]:
    """The loss at each of ``steps`` steps by gradient and by EM."""
    images, labels = batch()
    optimizer = torch.optim.AdamW([each for each in segmenter.parameters() if each.requires_grad], lr=3e-3)
    em = OnlineEM(segmenter.mixture, PRESETS["default"])
    segmenter.train()
    history = []
    for _ in range(steps):
        output = segmenter(images)
        loss = sum(segmenter.losses(output, labels).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        em.step(*segmenter.em_points(output, labels))
        history.append(float(loss.detach()))
    return history


@pytest.mark.parametrize("source", SOURCES)
def test_convert_train_save_load_predict(source: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = SOURCES[source](tmp_path / "source")
    segmenter = gmmseg.build(name, head=SMALL, class_names=NAMES)
    history = train(segmenter, 20)
    assert sum(history[-3:]) < sum(history[:3])

    segmenter.eval().save_pretrained(tmp_path / "saved")
    shutil.rmtree(tmp_path / "source", ignore_errors=True)
    again = gmmseg.from_pretrained(tmp_path / "saved")
    assert again.label_names == NAMES
    image = (batch()[0][0] * 255).byte()
    before, after = (gmmseg.Predictor(each).predict(image) for each in (segmenter, again))
    assert torch.equal(torch.as_tensor(before.labels), torch.as_tensor(after.labels))
    assert np.array_equal(np.asarray(before.anomaly), np.asarray(after.anomaly))


def _original_logits(source: str, name: str, images: Tensor) -> Tensor:
    """What the original makes of normalised images, asked in its own library."""
    torch.manual_seed(3)
    if source == "smp":
        import segmentation_models_pytorch as smp

        return smp.FPN("mobilenet_v2", encoder_weights=None, classes=4).eval()(images)
    if source == "torchvision":
        from torchvision.models import segmentation

        plain = {"weights": None, "weights_backbone": None}
        return segmentation.lraspp_mobilenet_v3_large(num_classes=4, **plain).eval()(images)["out"]
    model = type(TRANSFORMERS[source.removeprefix("hf ")]()).from_pretrained(name).eval()
    found = model(images)
    if source == "hf mask2former":
        return found.class_queries_logits
    return found.logits


def largest_difference(source: str, folder: Path) -> float | None:
    """Between the logits of a source's softmax twin and those of the original network, asked in its own
    library, on two images; None where the network is ours and there is no original."""
    name = SOURCES[source](folder)
    if source.startswith("timm"):
        return None
    torch.manual_seed(3)
    twin = gmmseg.build(name, head="softmax", class_names=NAMES).eval()
    images = batch()[0]
    with torch.no_grad():
        output = twin(images)
        if source == "ours":
            return _distance(output.logits, gmmseg.from_pretrained(Path(name) / "best")(images).logits)
        expected = _original_logits(source, name, (images - twin.mean) / twin.std)
        if source == "hf mask2former":
            return _distance(output.query_logits[-1], expected)
        return _distance(
            resize(output.logits, expected.shape[-2:], align_corners=twin.align_corners), expected
        )


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("source", [name for name in SOURCES if not name.startswith("timm")])
def test_the_twins_logits_are_those_of_the_original(source: str, tmp_path: Path) -> None:
    exact = source in ("hf mask2former", "ours")
    assert largest_difference(source, tmp_path / "source") <= (0 if exact else 2e-6)


class TestClasses:
    @pytest.mark.parametrize("source", ["hf segformer", "hf upernet", "hf mask2former", "ours"])
    def test_known_classes_keep_their_rows_whatever_their_order(self, source: str, tmp_path: Path) -> None:
        name = SOURCES[source](tmp_path / "source")
        original = gmmseg.build(name, head="softmax").eval()
        with pytest.warns(
            UserWarning, match=r"2 of 3 classes are known by name: Tree, road; these start fresh: bus$"
        ):
            other = gmmseg.build(name, head="softmax", class_names=("Tree", "bus", "road")).eval()
        assert other.num_classes == 3
        self._compare(original, other, [3, 0], [0, 2])

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            turned = gmmseg.build(name, head="softmax", class_names=NAMES[::-1]).eval()
        self._compare(original, turned, [3, 2, 1, 0], [0, 1, 2, 3])
        turned.save_pretrained(tmp_path / "turned")
        again = gmmseg.from_pretrained(tmp_path / "turned")
        with torch.no_grad():
            assert torch.equal(again(batch()[0]).logits, turned(batch()[0]).logits)

    @staticmethod
    def _compare(original: Segmenter, other: Segmenter, old: list[int], new: list[int]) -> None:
        """Rows of the classifiers, and of all that is shared, are equal."""
        kept, found = original.head.state_dict(), other.head.state_dict()
        assert kept.keys() == found.keys()
        for name in kept:
            assert torch.equal(kept[name][old], found[name][new]), name
        features = original.features.state_dict()
        for name, value in other.features.state_dict().items():
            assert torch.equal(value, features[name]), name

    def test_mixtures_of_a_generative_model_go_with_their_classes(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        model = gmmseg.build("tiny_unet", head=SMALL, class_names=NAMES)
        train(model, 3)
        model.save_pretrained(tmp_path)
        turned = gmmseg.build(str(tmp_path), head=SMALL, class_names=NAMES[::-1])
        assert turned.is_fitted
        images = batch()[0]
        with torch.no_grad():
            torch.testing.assert_close(turned(images).evidence.flip(1), model.eval()(images).evidence)

    def test_without_names_the_order_counts_and_other_numbers_start_fresh(self, tmp_path: Path) -> None:
        gmmseg.build("tiny_unet", num_classes=3, head="softmax").save_pretrained(tmp_path)
        with pytest.warns(UserWarning, match="have no names, so they are taken in the order of yours"):
            same = gmmseg.build(str(tmp_path), head="softmax", class_names=("a", "b", "c"))
        original = gmmseg.from_pretrained(tmp_path)
        assert torch.equal(same.head.classifier.weight, original.head.classifier.weight)
        with pytest.warns(UserWarning, match="all 5 that are wanted start fresh"):
            assert gmmseg.build(str(tmp_path), head="softmax", num_classes=5).num_classes == 5


def test_timm_backbones_are_trained_or_frozen(tmp_path: Path) -> None:
    from gmmseg.training.optim import freeze_backbone

    segmenter = gmmseg.build("timm:test_resnet", head=SMALL, num_classes=4)
    backbone = segmenter.backbone
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    freeze_backbone(segmenter)
    train(segmenter, 2)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    backbone.requires_grad_(True)
    train(segmenter, 1)
    moved = {name for name, value in backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert any("running_mean" in name for name in moved)
    assert any(name.endswith("conv1.weight") for name in moved)


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit", "timm:hrnet_w18_small"])
def test_timm_networks_take_images_of_odd_sizes(name: str) -> None:
    segmenter = gmmseg.build(name, head="softmax", num_classes=3).eval()
    with torch.no_grad():
        logits = segmenter(torch.rand(1, 3, 61, 75)).logits
    assert logits.shape == (1, 3, -(-61 // segmenter.stride), -(-75 // segmenter.stride))


def test_a_vit_gives_every_third_of_twelve_blocks_or_those_named() -> None:
    net = gmmseg.build("timm:vit_tiny_patch16_224", num_classes=2, head="softmax").features.backbone.backbone
    assert tuple(net.net.feature_info.out_indices) == (2, 5, 8, 11)
    named = gmmseg.build("timm:test_vit@0,3", num_classes=2, head="softmax").features.backbone.backbone
    assert tuple(named.net.feature_info.out_indices) == (0, 3)


REFUSED: dict[str, tuple[type[Exception], str]] = {
    "tim:resnet50": (ValueError, r"source tim:.* smp:, torchvision:, timm:; did you mean timm:resnet50\?"),
    "tiny_unett": (ValueError, r"unknown network 'tiny_unett': choose one of .*did you mean tiny_unet\?"),
    "runs/nothing": (ValueError, r"no such folder 'runs/nothing'"),
    "smp:Unett/resnet18": (ValueError, r"no architecture 'Unett': choose Unet, .*did you mean Unet"),
    "smp:Unet": (ValueError, r"write smp:ARCHITECTURE/ENCODER, such as smp:Unet/resnet34"),
    "smp:Unet/resnet1": (ValueError, r"no encoder 'resnet1'.*did you mean resnet18"),
    "smp:Unet/tu-resnet1": (ValueError, r"timm has no model 'resnet1'"),
    "torchvision:fcn_resnet5": (ValueError, r"no .*network 'fcn_resnet5': .*did you mean fcn_resnet50"),
    "timm:resnet5": (ValueError, r"timm has no model 'resnet5'.*did you mean resnet50"),
    "timm:convmixer_768_32": (ValueError, r"gives no feature maps.*choose a backbone with maps"),
    "timm:mixer_s32_224": (ValueError, r"does not take images of any size"),
    "timm:test_vit@1,99": (ValueError, r"gives maps 0 to 5: choose among them, such as timm:test_vit@"),
    "": (ValueError, r"unknown network '': choose one of tiny_unet, "),
    "hf:": (ValueError, r"hf:: no name on the hub can look like this; write hf:OWNER/NAME"),
    "hf:../../etc": (ValueError, r"hf:\.\./\.\./etc: no name on the hub .* write hf:OWNER/NAME"),
    "timm:test_vit@last": (ValueError, r"after the @ come numbers of maps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_names_are_refused_with_the_nearest_spelling(name: str) -> None:
    kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as told:
        gmmseg.build(name, num_classes=3)
    assert "\n" not in str(told.value)


def test_what_cannot_be_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no model in this folder; one has config\.json and weights"):
        gmmseg.build(str(tmp_path), num_classes=3)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"config\.json: of no model known here"):
        gmmseg.build(str(tmp_path), num_classes=3)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: not valid JSON"):
        gmmseg.build(str(tmp_path), num_classes=3)
    classifier = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(classifier))
    with pytest.raises(ConversionError, match=r"'ViTForImageClassification' is not a segmentation model"):
        gmmseg.build(str(tmp_path), num_classes=3)
    with pytest.raises(ValueError, match=r"comes with its weights: leave weights=some\.pth out"):
        gmmseg.build(str(tmp_path), num_classes=3, weights="some.pth")


def test_a_network_without_classes_of_its_own_asks_for_them() -> None:
    for name in ("tiny_unet", "smp:Unet/resnet18", "timm:test_vit", "torchvision:fcn_resnet50"):
        with pytest.raises(ValueError, match=r"no classes of its own: say which \(class_names"):
            gmmseg.build(name)
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        gmmseg.build("tiny_unet", num_classes=3, class_names=("a", "b"))


def _on_hub(family: str, cache: Path) -> str:
    """A name on the hub that an earlier download has left in ``cache``."""
    place = cache / "models--owner--name"
    _saved(family, place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    return "hf:owner/name"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder of earlier downloads, and no hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_name_on_the_hub_gives_what_its_folder_gives(cache: Path, tmp_path: Path) -> None:
    name, folder = _on_hub("segformer", cache), _saved("segformer", tmp_path / "folder")
    hub, local = (gmmseg.build(each, head="softmax").eval() for each in (name, folder))
    images = batch()[0]
    with torch.no_grad():
        assert torch.equal(hub(images).logits, local(images).logits)
    assert hub.label_names == NAMES


def test_a_hub_that_cannot_be_reached_is_one_line(cache: Path) -> None:
    with pytest.raises(
        OSError, match=r"hf:owner/name: .*cannot be reached.*download its config\.json and weights"
    ) as told:
        gmmseg.build("hf:owner/name", num_classes=3)
    assert "\n" not in str(told.value)


def test_the_images_a_network_expects_are_those_of_its_preprocessor(tmp_path: Path) -> None:
    name = _saved("segformer", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3], "do_normalize": True})
    )
    segmenter = gmmseg.build(name, head="softmax")
    assert segmenter.mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.3])
    segmenter.save_pretrained(tmp_path / "saved")
    assert gmmseg.from_pretrained(tmp_path / "saved").std.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_published_networks_of_torchvision_keep_the_classes_they_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gmmseg.models import sources
    from gmmseg.models.torchvision_models import open_torchvision

    torch.manual_seed(0)
    network = open_torchvision("lraspp_mobilenet_v3_large", 4, None)
    monkeypatch.setattr(sources, "published_torchvision", lambda name: (network, NAMES))
    with pytest.warns(UserWarning, match=r"1 of 2 classes are known by name: car; these start fresh: bus"):
        twin = gmmseg.build(
            "torchvision:lraspp_mobilenet_v3_large",
            head="softmax",
            class_names=("car", "bus"),
            weights="pretrained",
        )
    for part, original in (("low", "low_classifier"), ("high", "high_classifier")):
        kept = getattr(twin.head.classifier, part).weight[0]
        assert torch.equal(kept, getattr(network.classifier, original).weight[2])


def test_a_file_of_torchvision_that_cannot_be_fetched_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gmmseg.models import torchvision_models

    def refuse(address: str, timeout: float) -> None:
        assert timeout <= 10
        raise OSError("no route")

    monkeypatch.setattr(torchvision_models, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(
        OSError, match=r"torchvision:fcn_resnet50 .*cannot be fetched \(no route\); give a file"
    ):
        gmmseg.build("torchvision:fcn_resnet50", num_classes=3, weights="pretrained")


def test_weights_of_transformers_that_are_cut_short_are_one_line(tmp_path: Path) -> None:
    name = SOURCES["hf segformer"](tmp_path / "source")
    weights = Path(name) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(WeightsError, match=r"source: its weights are not a whole safetensors file .*again"):
        gmmseg.build(name)
