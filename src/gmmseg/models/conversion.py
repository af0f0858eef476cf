"""Any softmax segmentation network becomes generative, keeping its weights."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from gmmseg.models.fcn import auxiliary_head
from gmmseg.models.features import IMAGENET_MEAN, IMAGENET_STD, FeatureExtractor, Features
from gmmseg.models.heads import GMMHead, HeadSettings, SoftmaxHead, make_head, preset_head
from gmmseg.models.recipe import Recipe
from gmmseg.models.segmenter import Segmenter

if TYPE_CHECKING:
    from transformers import Mask2FormerForUniversalSegmentation, PreTrainedModel

Triple = tuple[float, float, float]
Found = TypeVar("Found")


class ConversionError(ValueError):
    """A network whose classifier cannot be found."""


@dataclass(frozen=True)
class Dissection:
    """A softmax network taken apart: its features, its classifier, and how to build the whole again."""

    features: FeatureExtractor
    classifier: nn.Module
    num_classes: int
    source: Recipe
    auxiliary_heads: tuple[nn.Module, ...] = ()


def convert(
    model: nn.Module,
    *,
    preset: str = "default",
    head: str | HeadSettings | None = None,
    num_classes: int | None = None,
    classifier: str | None = None,
    mean: Triple = IMAGENET_MEAN,
    std: Triple = IMAGENET_STD,
) -> Segmenter:
    """A segmenter that shares the weights of ``model``, with a new head; ``model`` itself stays as it is.

    ``model`` comes from transformers, segmentation-models-pytorch or torchvision, or is any module with
    its last convolution (or linear layer over channels-last maps) named by ``classifier``. ``preset`` and
    ``head`` as in `build`; "softmax" keeps the classifier of the model, so it is the model's honest twin.
    ``num_classes``: None keeps the model's. ``mean`` and ``std``: what the model was trained with.
    """
    settings = preset_head(preset, head)
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    segmenter = _converted(share_weights(model), settings, num_classes, classifier, mean, std)
    assert isinstance(segmenter.features, FeatureExtractor)
    freeze_unused(segmenter.features)
    segmenter.label_names = _label_names(model, segmenter.num_classes)
    return segmenter.train(model.training)  # the new head in the model's own mode


def _converted(
    shared: nn.Module,
    settings: HeadSettings,
    num_classes: int | None,
    classifier: str | None,
    mean: Triple,
    std: Triple,
) -> Segmenter:
    if type(shared).__name__ == "Mask2FormerForUniversalSegmentation":
        from gmmseg.models.masks import convert_mask2former

        mask2former = cast("Mask2FormerForUniversalSegmentation", shared)
        return convert_mask2former(mask2former, settings, num_classes, mean, std)
    parts = dissect(shared, classifier)
    classes = num_classes or parts.num_classes
    recipe: Recipe = {
        **parts.source,
        "num_classes": classes,
        "head": asdict(settings),
        "mean": mean,
        "std": std,
    }
    return Segmenter(
        parts.features,
        _head(parts, settings, classes),
        mean=mean,
        std=std,
        auxiliary_heads=_auxiliary_heads(parts, classes),
        recipe=recipe,
    )


def _label_names(model: nn.Module, num_classes: int) -> tuple[str, ...] | None:
    """What transformers' models call their classes, where they have names and the classes are kept."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not names or len(names) != num_classes or names.get(0) == "LABEL_0":
        return None
    return tuple(str(names[i]) for i in range(num_classes))


def share_weights(model: nn.Module) -> nn.Module:
    """A copy of the modules of ``model`` that holds the very same parameters and buffers."""
    memo: dict[int, object] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, memo)


def dissect(model: nn.Module, classifier: str | None) -> Dissection:
    """Take ``model`` apart, by its library's conventions or at the layer named ``classifier``."""
    if classifier is not None:
        return dissect_at(model, classifier, {"source": "module", "classifier": classifier})
    libraries = {base.__module__.split(".")[0] for base in type(model).__mro__}
    if "transformers" in libraries:
        from gmmseg.models.huggingface import dissect_transformers

        return dissect_transformers(cast("PreTrainedModel", model))
    if "segmentation_models_pytorch" in libraries:
        from gmmseg.models.smp import dissect_smp

        return dissect_smp(model)
    if "torchvision" in libraries:
        from gmmseg.models.torchvision_models import dissect_torchvision

        return dissect_torchvision(model)
    raise ConversionError(
        f"{type(model).__name__} is of no library that convert knows: name the layer that makes its "
        f'class scores, convert(model, classifier="..."); it ends with {", ".join(layer_names(model)[-6:])}'
    )


def layer_names(model: nn.Module) -> list[str]:
    """Names of the layers that could be classifiers, in the order in which they were built."""
    return [
        name for name, layer in model.named_modules() if name and isinstance(layer, nn.Conv2d | nn.Linear)
    ]


def dissect_at(model: nn.Module, name: str, source: Recipe) -> Dissection:
    """Take ``model`` apart at the layer called ``name``: features are whatever that layer is given."""
    try:
        layer = model.get_submodule(name)
    except AttributeError as error:
        listed = ", ".join(layer_names(model)[-6:])
        raise ConversionError(
            f"{type(model).__name__} has no layer {name!r}; its last layers are {listed}"
        ) from error
    channels, num_classes = _shape_of(layer, name)
    classifier = ChannelsLastClassifier(layer) if isinstance(layer, nn.Linear) else layer
    features = TappedFeatures(model, name, channels, channels_last=isinstance(layer, nn.Linear))
    features.align_corners = _aligns_corners(model, name)
    return Dissection(features, classifier, num_classes, source)


def _shape_of(layer: nn.Module, name: str) -> tuple[int, int]:
    """Input and output channels of a classifier: a convolution, a linear layer, or a block around one."""
    inner = [each for each in layer.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    if len(inner) != 1:
        raise ConversionError(
            f"layer {name!r} holds {len(inner)} convolutions or linear layers: name a single one"
        )
    only = inner[0]
    if isinstance(only, nn.Conv2d):
        return only.in_channels, only.out_channels
    assert isinstance(only, nn.Linear)
    return only.in_features, only.out_features


def _aligns_corners(model: nn.Module, name: str) -> bool:
    """Whether a layer after the one called ``name``, in the same sequence, upsamples with aligned corners."""
    parent, _, last = name.rpartition(".")
    sequence = model.get_submodule(parent)
    layers = dict(sequence.named_children()) if isinstance(sequence, nn.Sequential) else {last: sequence}
    after = list(layers.values())[list(layers).index(last) + 1 :]
    return any(isinstance(layer, nn.Upsample) and bool(layer.align_corners) for layer in after)


class _Reached(Exception):
    """Carries the classifier's input out of the network; what would come after it is never computed."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


class _Tap(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        raise _Reached(features)


class TappedFeatures(FeatureExtractor):
    """A network up to the input of one of its layers; ``channels_last`` when that input is (b h w f)."""

    def __init__(self, network: nn.Module, layer: str, channels: int, *, channels_last: bool = False) -> None:
        super().__init__()
        self.network, self.channels_last = network, channels_last
        self.out_channels = channels
        parent, _, name = layer.rpartition(".")
        setattr(network.get_submodule(parent), name, _Tap())
        self.stride = measured_stride(self, layer)

    @property
    def backbone(self) -> nn.Module:  # type: ignore[override]
        """What came pretrained, by its usual names; the whole network where there is none of them."""
        for name in ("backbone", "encoder", getattr(self.network, "base_model_prefix", "")):
            if name and isinstance(getattr(self.network, name, None), nn.Module):
                return getattr(self.network, name)
        return self.network

    def forward(self, images: Tensor) -> Features:
        try:
            self.network(images)
        except _Reached as reached:
            features = reached.features
        else:
            raise ConversionError("the network never called the layer that was named as its classifier")
        if features.ndim != 4:
            raise ConversionError(
                f"the classifier is given shape {tuple(features.shape)}; expected a map (b f h w)"
            )
        return Features(features.permute(0, 3, 1, 2) if self.channels_last else features)


def measured_stride(features: FeatureExtractor, what: str) -> int:
    """Image size over feature size, by trying it on an empty image."""

    @torch.no_grad()
    def measure(images: Tensor) -> int:
        return max(1, round(images.shape[-2] / features(images).main.shape[-2]))

    return _tried(features, what, measure)


def freeze_unused(features: FeatureExtractor) -> None:
    """No gradient for parameters that no feature depends on: they would stop distributed training.

    Such as stages beyond the last that a decoder reads. Which ones they are is found by going back from the
    features of an empty image. The original's parameters stay as they are; frozen ones share their values.
    """
    trained = [parameter for parameter in features.parameters() if parameter.requires_grad]

    @torch.enable_grad()
    def unreached(images: Tensor) -> set[int]:
        total = torch.stack([each.sum() for each in _tensors(features(images))]).sum()
        found = torch.autograd.grad(total, trained, allow_unused=True) if total.requires_grad else ()
        return {id(parameter) for parameter, gradient in zip(trained, found) if gradient is None}

    unused = _tried(features, "its features", unreached) if trained else set()
    for module in features.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in unused:
                setattr(module, name, nn.Parameter(parameter.detach(), requires_grad=False))


def _tensors(maps: Tensor | tuple[Tensor, ...] | Features) -> Iterator[Tensor]:
    """The tensors of nested tuples."""
    if isinstance(maps, Tensor):
        yield maps
        return
    for each in maps:
        yield from _tensors(each)


def _tried(
    features: FeatureExtractor,
    what: str,
    trial: Callable[[Tensor], Found],
    sizes: tuple[int, ...] = (128, 224, 512),
) -> Found:
    """What ``trial`` finds with an empty image (1 3 h w), in evaluation mode; the features keep their mode.

    Some networks take one size of image only, so the usual ones are tried.
    """
    device = next(features.parameters()).device
    training = {module: module.training for module in features.modules()}
    reasons = []
    try:
        features.eval()
        for size in sizes:
            try:
                return trial(torch.zeros(1, 3, size, size, device=device))
            except (RuntimeError, ValueError, AssertionError) as error:
                reasons.append(f"{size}x{size}: {error}")
    finally:
        for module, mode in training.items():
            module.training = mode
    raise ConversionError(f"could not run the network up to {what!r}, at {'; at '.join(reasons)}")


class ChannelsLastClassifier(nn.Module):
    """A linear layer over channels, applied to maps (b f h w) -> (b c h w)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, maps: Tensor) -> Tensor:
        return self.linear(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _head(parts: Dissection, settings: HeadSettings, num_classes: int) -> GMMHead | SoftmaxHead:
    if settings.kind == "softmax" and num_classes == parts.num_classes:
        return SoftmaxHead(parts.features.out_channels, num_classes, parts.classifier)
    return make_head(settings, parts.features.out_channels, num_classes)


def _auxiliary_heads(parts: Dissection, num_classes: int) -> tuple[nn.Module, ...]:
    if parts.auxiliary_heads and num_classes == parts.num_classes:
        return parts.auxiliary_heads
    return tuple(auxiliary_head(channels, num_classes) for channels in parts.features.auxiliary_channels)
