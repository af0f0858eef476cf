"""Conversion keeps features and, for the twin, logits exactly, for every library."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.mixture import PRESETS, OnlineEM
from gmmseg.models.conversion import ConversionError
from gmmseg.models.heads import HeadSettings
from gmmseg.samples import Sample

SMALL = HeadSettings(components=2, dim=8)
CLASSES = 5


def _smp(name: str, encoder: str = "resnet18", **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import segmentation_models_pytorch as smp

        return getattr(smp, name)(encoder, encoder_weights=None, classes=CLASSES, **options)

    return make


def _torchvision(name: str, **options: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import segmentation

        return getattr(segmentation, name)(
            weights=None, weights_backbone=None, num_classes=CLASSES, **options
        )

    return make


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 40, 64], "decoder_hidden_size": 16}
    return SegformerForSemanticSegmentation(SegformerConfig(num_labels=CLASSES, **sizes))


def _upernet() -> nn.Module:
    from transformers import SwinConfig, UperNetConfig, UperNetForSemanticSegmentation

    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = SwinConfig(embed_dim=8, depths=[1] * 4, num_heads=[1, 2, 2, 4], window_size=4, out_features=stages)
    config = UperNetConfig(backbone_config=swin, hidden_size=16, num_labels=CLASSES)
    return UperNetForSemanticSegmentation(config)


def _mobilevit() -> nn.Module:
    from transformers import MobileViTConfig, MobileViTForSemanticSegmentation

    sizes = {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 16, 24]}
    config = MobileViTConfig(num_labels=CLASSES, num_attention_heads=2, aspp_out_channels=12, **sizes)
    return MobileViTForSemanticSegmentation(config)


def _mobilenet() -> nn.Module:
    from transformers import MobileNetV2Config, MobileNetV2ForSemanticSegmentation

    return MobileNetV2ForSemanticSegmentation(MobileNetV2Config(num_labels=CLASSES, depth_multiplier=0.35))


class OwnNetwork(nn.Module):
    """A network of no library, with more to it after its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU())
        self.top = nn.ModuleDict({"scores": nn.Conv2d(6, CLASSES, 1)})

    def forward(self, images: Tensor) -> Tensor:
        return F.interpolate(self.top["scores"](self.encoder(images)), scale_factor=2)


class ChannelsLastNetwork(OwnNetwork):
    """Its classifier is a linear layer over (b h w f)."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.ModuleDict({"scores": nn.Linear(6, CLASSES)})

    def forward(self, images: Tensor) -> Tensor:
        return self.top["scores"](self.encoder(images).permute(0, 2, 3, 1))


# name: (builder, name of the original's classifier, name to give to convert)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, str | None]] = {
    "smp_unet": (_smp("Unet", "mobilenet_v2"), "segmentation_head.0", None),
    "smp_deeplabv3plus": (_smp("DeepLabV3Plus", "mobilenet_v2"), "segmentation_head.0", None),
    "smp_classified": (
        _smp("Linknet", "mobilenet_v2", aux_params={"classes": 2}),
        "segmentation_head.0",
        None,
    ),
    "torchvision_fcn": (_torchvision("fcn_resnet50", aux_loss=True), "classifier.4", None),
    "torchvision_deeplab": (_torchvision("deeplabv3_mobilenet_v3_large"), "classifier.4", None),
    "segformer": (_segformer, "decode_head.classifier", None),
    "upernet": (_upernet, "decode_head.classifier", None),
    "mobilevit": (_mobilevit, "segmentation_head.classifier.convolution", None),
    "mobilenet": (_mobilenet, "segmentation_head.classifier.convolution", None),
    "own": (OwnNetwork, "top.scores", "top.scores"),
    "own_channels_last": (ChannelsLastNetwork, "top.scores", "top.scores"),
}


@pytest.fixture(params=NETWORKS, scope="class")
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, str, str | None]:
    torch.manual_seed(0)
    make, original, named = NETWORKS[request.param]
    return make().eval(), original, named


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=generator)


def _observed(model: nn.Module, layer: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the original's classifier is given, and what it makes of it."""
    seen: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(
        lambda _, given, made: seen.extend([given[0], made])
    )
    with torch.no_grad():
        model(images)
    hook.remove()
    return seen[0], seen[1]


class TestEveryLibrary:
    def test_features_and_logits_are_the_originals(self, network: tuple, images: Tensor) -> None:
        model, layer, named = network
        twin = gmmseg.convert(model, head="softmax", classifier=named)
        generative = gmmseg.convert(model, head=SMALL, classifier=named)
        given, made = _observed(model, layer, twin.normalise(images))
        if isinstance(model.get_submodule(layer), nn.Linear):
            given, made = given.permute(0, 3, 1, 2), made.permute(0, 3, 1, 2)
        with torch.no_grad():
            assert torch.equal(twin(images).points, given)
            assert torch.equal(twin(images).logits, made)
            assert torch.equal(generative.features(generative.normalise(images)).main, given)
        assert generative.stride == round(64 / given.shape[-2])
        assert twin.num_classes == generative.num_classes == CLASSES

    def test_weights_are_shared_and_the_original_is_whole(self, network: tuple, images: Tensor) -> None:
        model, _, named = network
        with torch.no_grad():
            before = _logits(model(images))
        names = list(model.state_dict())
        segmenter = gmmseg.convert(model, head=SMALL, classifier=named)
        shared = {value.data_ptr() for value in model.parameters()}
        assert all(value.data_ptr() in shared for value in segmenter.features.parameters())
        with torch.no_grad():
            assert torch.equal(_logits(model(images)), before)
        assert list(model.state_dict()) == names

    def test_it_learns_both_ways(self, network: tuple, images: Tensor, generator: torch.Generator) -> None:
        model, _, named = network
        segmenter = gmmseg.convert(model, head=SMALL, num_classes=3, classifier=named).train()
        labels = torch.randint(0, 3, (2, 64, 64), generator=generator)
        output = segmenter(images)
        sum(segmenter.losses(output, labels).values()).backward()
        # One that gets none would stop distributed training; those that take no part are frozen.
        assert all(value.grad is not None for value in segmenter.parameters() if value.requires_grad)
        assert all(value.requires_grad for value in model.parameters()), "of the original"
        assert any(
            value.grad is not None and value.grad.abs().sum() > 0 for value in segmenter.backbone.parameters()
        )
        before = segmenter.mixture.means.clone()
        OnlineEM(segmenter.mixture, PRESETS["default"]).step(*segmenter.em_points(output, labels))
        assert (segmenter.mixture.means != before).flatten(1).any(1).all()
        segmenter.zero_grad()
        segmenter.eval()

    def test_odd_sizes(self, network: tuple) -> None:
        model, _, named = network
        segmenter = gmmseg.convert(model.eval(), head=SMALL, classifier=named)
        with torch.no_grad():
            output = segmenter(torch.rand(1, 3, 61, 75))
        stride = segmenter.stride
        assert output.logits.shape == (1, CLASSES, -(-61 // stride), -(-75 // stride))

    @pytest.mark.parametrize("head", ["softmax", "default"])
    def test_save_and_load(self, network: tuple, images: Tensor, tmp_path: Path, head: str) -> None:
        model, _, named = network
        segmenter = gmmseg.convert(model.eval(), head=head, classifier=named, mean=(0.4, 0.5, 0.6))
        segmenter.save_pretrained(tmp_path)
        fresh = None if named is None else type(model)()
        loaded = gmmseg.from_pretrained(tmp_path, architecture=fresh)
        with torch.no_grad():
            assert torch.equal(loaded(images).logits, segmenter(images).logits)


def _logits(output: object) -> Tensor:
    if isinstance(output, dict) and "out" in output:
        return output["out"]
    if isinstance(output, tuple):
        return output[0]
    return getattr(output, "logits", output)


def test_upsampling_of_the_original_follows_the_twins_logits(images: Tensor) -> None:
    """What convert leaves out is the resize at the end, nothing else."""
    model = NETWORKS["torchvision_fcn"][0]().eval()
    twin = gmmseg.convert(model, preset="softmax")
    with torch.no_grad():
        resized = F.interpolate(twin(images).logits, size=(64, 64), mode="bilinear", align_corners=False)
        assert torch.equal(resized, model(twin.normalise(images))["out"])


def _dpt() -> nn.Module:
    from transformers import DPTConfig, DPTForSemanticSegmentation

    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
    config = DPTConfig(
        **sizes, image_size=64, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8, num_labels=CLASSES, use_auxiliary_head=False,
    )  # fmt: skip
    return DPTForSemanticSegmentation(config)


# name: (builder, size of the image, whether the original resizes with aligned corners)
FULL_SIZE: dict[str, tuple[Callable[[], nn.Module], tuple[int, int], bool]] = {
    "smp_unet": (_smp("Unet", "mobilenet_v2"), (64, 96), True),
    "smp_fpn": (_smp("FPN", "mobilenet_v2"), (64, 96), True),
    "smp_pspnet": (_smp("PSPNet", "mobilenet_v2"), (64, 96), True),
    "smp_deeplabv3plus": (_smp("DeepLabV3Plus", "mobilenet_v2"), (64, 96), True),
    "torchvision_deeplab": (_torchvision("deeplabv3_mobilenet_v3_large"), (64, 88), False),
    "segformer": (_segformer, (64, 100), False),
    "dpt": (_dpt, (64, 64), True),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_twin_is_the_original_at_full_resolution(
    name: str, generator: torch.Generator, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, size, aligned = FULL_SIZE[name]
    model = make().eval()
    gmmseg.convert(model, head="softmax").save_pretrained(tmp_path)
    twin = gmmseg.from_pretrained(tmp_path)
    assert twin.align_corners is aligned
    image = torch.rand(1, 3, *size, generator=generator)
    with torch.no_grad():
        original = _logits(model(twin.normalise(image)))
    if original.shape[-2:] != size:  # transformers' own post-processing
        original = F.interpolate(original, size=size, mode="bilinear", align_corners=False)
    maps = gmmseg.Predictor(twin).maps(Sample(image[0], torch.zeros(size, dtype=torch.uint8), "x"))
    torch.testing.assert_close(maps.logits, original, atol=1e-4, rtol=1e-4)
    assert torch.equal(maps.logits.argmax(1), original.argmax(1))
    # The loss is taken of the same scores that are predicted.
    labels = torch.randint(0, CLASSES, (1, *size), generator=generator)
    with torch.no_grad():
        loss = twin.losses(twin(image), labels)["posterior"]
    torch.testing.assert_close(loss, F.cross_entropy(original, labels), atol=1e-4, rtol=1e-4)


def _smp_architectures() -> list[str]:
    import segmentation_models_pytorch as smp

    # DPT wants a ViT; it has a test of its own.
    return sorted({kind.__name__ for kind in smp.MODEL_ARCHITECTURES_MAPPING.values()} - {"DPT"})


@pytest.mark.parametrize("name", _smp_architectures())
def test_every_architecture_of_smp(name: str, generator: torch.Generator) -> None:
    images = torch.rand(1, 3, 128, 128, generator=generator)
    encoder = "resnet18" if name in ("PAN", "DeepLabV3") else "mobilenet_v2"
    model = _smp(name, encoder)().eval()
    twin = gmmseg.convert(model, head="softmax")
    given, made = _observed(model, "segmentation_head.0", twin.normalise(images))
    with torch.no_grad():
        output = twin(images)
    assert torch.equal(output.points, given)
    assert torch.equal(output.logits, made)


def test_dpt_of_smp(generator: torch.Generator) -> None:
    sizes = {"decoder_intermediate_channels": (8, 8, 8, 8), "decoder_fusion_channels": 8}
    model = _smp("DPT", "tu-vit_tiny_patch16_224.augreg_in21k", **sizes)().eval()
    twin = gmmseg.convert(model, head="softmax")
    images = torch.rand(1, 3, 224, 224, generator=generator)
    given, made = _observed(model, "segmentation_head.head.4", twin.normalise(images))
    with torch.no_grad():
        assert torch.equal(twin(images).points, given)
        assert torch.equal(twin(images).logits, made)


def _beit() -> nn.Module:
    from transformers import BeitConfig, BeitForSemanticSegmentation

    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
    indices = {"out_indices": [0, 1, 2, 3], "use_relative_position_bias": True}
    config = BeitConfig(num_labels=CLASSES, auxiliary_channels=8, **sizes, **indices)
    return BeitForSemanticSegmentation(config)


def _dpt() -> nn.Module:
    from transformers import DPTConfig, DPTForSemanticSegmentation

    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
    neck = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "backbone_out_indices": [0, 1, 2, 3]}
    return DPTForSemanticSegmentation(DPTConfig(num_labels=CLASSES, image_size=224, **sizes, **neck))


def _mask2former() -> nn.Module:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = ["stage1", "stage2", "stage3", "stage4"]
    swin = SwinConfig(embed_dim=8, depths=[1] * 4, num_heads=[1, 2, 2, 4], window_size=4, out_features=stages)
    config = Mask2FormerConfig(backbone_config=swin, decoder_layers=2, encoder_layers=1, hidden_dim=32)
    config.num_labels = CLASSES
    return Mask2FormerForUniversalSegmentation(config)


@pytest.mark.parametrize("make", [_beit, _dpt, _mask2former, _smp("PSPNet"), _smp("FPN")])
def test_every_parameter_that_is_trained_gets_a_gradient(make: Callable[[], nn.Module]) -> None:
    """One that gets none would stop distributed training."""
    model = make()
    segmenter = gmmseg.convert(model, head=SMALL).train()
    labels = torch.randint(0, CLASSES, (2, 224, 224), generator=torch.Generator().manual_seed(0))
    output = segmenter(torch.rand(2, 3, 224, 224))
    sum(segmenter.losses(output, labels).values()).backward()
    frozen = [value for value in segmenter.parameters() if not value.requires_grad]
    assert all(value.grad is not None for value in segmenter.parameters() if value.requires_grad)
    assert all(value.grad is None for value in frozen)
    assert all(value.requires_grad for value in model.parameters())


def test_lraspp_adds_the_scores_of_two_maps(images: Tensor, tmp_path: Path) -> None:
    model = _torchvision("lraspp_mobilenet_v3_large")().eval()
    twin = gmmseg.convert(model, head="softmax")
    assert twin.features.out_channels == 40 + 128
    with torch.no_grad():
        resized = F.interpolate(twin(images).logits, size=(64, 64), mode="bilinear", align_corners=False)
        assert torch.equal(resized, model(twin.normalise(images))["out"])
        twin.save_pretrained(tmp_path)
        assert torch.equal(gmmseg.from_pretrained(tmp_path)(images).logits, twin(images).logits)


def test_auxiliary_heads_come_along(images: Tensor) -> None:
    model = NETWORKS["torchvision_fcn"][0]().train()
    same = gmmseg.convert(model, head=SMALL)
    other = gmmseg.convert(model, head=SMALL, num_classes=7)
    assert same.auxiliary_heads[0][4].weight is model.aux_classifier[4].weight
    assert other(images).auxiliary[0].shape[1] == 7
    labels = torch.full((2, 64, 64), IGNORE)
    assert "auxiliary" in other.losses(other(images), labels)


def test_names_of_classes_are_kept_with_the_classes() -> None:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 40, 64], "decoder_hidden_size": 16}
    config = SegformerConfig(id2label={0: "road", 1: "sky"}, **sizes)
    model = SegformerForSemanticSegmentation(config)
    assert gmmseg.convert(model).label_names == ("road", "sky")
    assert gmmseg.convert(model, num_classes=3).label_names is None
    assert gmmseg.convert(_segformer()).label_names is None


def test_refusals_say_how_to_name_the_layer() -> None:
    with pytest.raises(ConversionError, match=r'OwnNetwork.*classifier="\.\.\.".*top\.scores'):
        gmmseg.convert(OwnNetwork())
    with pytest.raises(ConversionError, match=r"no layer 'top\.score'.*top\.scores"):
        gmmseg.convert(OwnNetwork(), classifier="top.score")
    with pytest.raises(ConversionError, match="holds 0 convolutions"):
        gmmseg.convert(OwnNetwork(), classifier="encoder.1")
    with pytest.raises(ValueError, match="num_classes must be at least 1"):
        gmmseg.convert(OwnNetwork(), classifier="top.scores", num_classes=0)
    tokens = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Flatten(2), nn.Linear(1024, CLASSES))
    with pytest.raises(ConversionError, match=r"\(1, 6, 1024\).*expected a map"):
        gmmseg.convert(tokens, classifier="2")


def test_a_classifier_of_another_task_is_refused() -> None:
    from torchvision.models import resnet18

    with pytest.raises(ConversionError, match=r'not FCN, DeepLabV3 or LRASPP.*classifier="'):
        gmmseg.convert(resnet18(weights=None))
