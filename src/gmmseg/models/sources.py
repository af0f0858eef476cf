"""Any network by name: of the zoo, of a library (behind its prefix), or a folder. The table is SOURCES."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gmmseg.json_tree import JSON
from gmmseg.models.classes import Wanted, adapt
from gmmseg.models.conversion import convert
from gmmseg.models.heads import HeadSettings, preset_head
from gmmseg.models.hub import PREFIX, download, fetching, offline
from gmmseg.models.huggingface import normalisation, open_transformers
from gmmseg.models.light import build_light
from gmmseg.models.names import meant
from gmmseg.models.pretrained import from_pretrained
from gmmseg.models.saving import CONFIG_FILE, RUN_PARTS
from gmmseg.models.segmenter import Segmenter
from gmmseg.models.smp import open_smp
from gmmseg.models.torchvision_models import open_torchvision, published_torchvision
from gmmseg.models.weights import WeightsError
from gmmseg.models.zoo import ZOO, build_named

PREPROCESSOR_FILE = "preprocessor_config.json"


def build(
    name: str,
    *,
    num_classes: int | None = None,
    preset: str = "default",
    head: str | HeadSettings | None = None,
    weights: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Segmenter:
    """The network called ``name`` with a head for the classes that are asked for.

    ``name``: one of the zoo, ``hf:owner/name``, ``smp:ARCHITECTURE/ENCODER``, ``torchvision:NAME``,
    ``timm:BACKBONE``, or a folder: one of ours, a run folder, or one of transformers. ``preset``:
    default, paper, reference or softmax, as in a configuration. ``head``: such a word or HeadSettings, in
    place of the preset's head. ``weights`` of the backbone: None (random), "pretrained" (from the hub) or a
    .safetensors / .pth file; what comes with its weights takes none.

    ``num_classes`` may be left out with ``class_names``, and where the network has classes of its own. With
    names on both sides a class that the network knows keeps what it learned about it, as far as the head
    has rows for classes: the softmax head of a network with the very same classes gives its own logits.
    """
    names = None if class_names is None else tuple(class_names)
    wanted = Wanted(preset_head(preset, head), num_classes, names)
    prefix, colon, rest = name.partition(":")
    if name in ZOO:
        segmenter = build_named(name, _count(name, wanted), wanted.settings, weights)
    elif colon and prefix in SOURCES:
        segmenter = SOURCES[prefix].build(rest, wanted, weights)
    elif name and Path(name).is_dir():  # no name is not the folder one is in
        segmenter = _from_folder(name, wanted, weights)
    else:
        raise ValueError(_unknown(name))
    segmenter.label_names = names or segmenter.label_names
    return segmenter


def _unknown(name: str) -> str:
    """What to say about a name of nothing that is known."""
    prefix, colon, rest = name.partition(":")
    prefixes = ", ".join(f"{each}:" for each in SOURCES)
    if colon:
        near = meant(prefix, SOURCES).replace("?", f":{rest}?")
        return f"unknown source {prefix}: of the network {name!r}: choose one of {prefixes}{near}"
    what = "no such folder" if "/" in name else "unknown network"
    return (
        f"{what} {name!r}: choose one of {', '.join(ZOO)}, a name after one of {prefixes}, or a folder of "
        f"weights{meant(name, ZOO)}"
    )


def _count(name: str, wanted: Wanted) -> int:
    """The number of classes, for a network that has none of its own."""
    if wanted.count is None:
        raise ValueError(
            f"{name} has no classes of its own: say which (class_names, on the "
            "command line --classes or --data)"
        )
    return wanted.count


def _build_smp(name: str, wanted: Wanted, weights: str | None) -> Segmenter:
    model, mean, std = open_smp(name, _count(f"smp:{name}", wanted), weights)
    return convert(model, head=wanted.settings, mean=mean, std=std)


def _build_torchvision(name: str, wanted: Wanted, weights: str | None) -> Segmenter:
    if weights != "pretrained":
        count = _count(f"torchvision:{name}", wanted)
        return convert(open_torchvision(name, count, weights), head=wanted.settings)
    model, names = published_torchvision(name)
    published = convert(model, head="softmax")
    published.label_names = names
    return adapt(published, wanted, f"torchvision:{name}")


def _build_timm(name: str, wanted: Wanted, weights: str | None) -> Segmenter:
    return build_light(name, _count(f"timm:{name}", wanted), wanted.settings, weights)


def _build_hub(name: str, wanted: Wanted, weights: str | None) -> Segmenter:
    """A repository of the hub: one of ours, or one of transformers."""
    origin = f"{PREFIX}{name}"
    _refuse_weights(origin, weights)
    folder = download(name, [CONFIG_FILE, PREPROCESSOR_FILE])
    if _is_ours(folder):
        return adapt(from_pretrained(origin), wanted, origin)
    instead = f"check the name, or download it into a folder and give that in place of {origin}"
    return _from_transformers(name, folder, wanted, origin, fetching(origin, instead))


def _from_folder(name: str, wanted: Wanted, weights: str | None) -> Segmenter:
    """A folder of weights, a run folder (its best weights), or a folder of transformers."""
    _refuse_weights(name, weights)
    places = (Path(name), *(Path(name) / part for part in RUN_PARTS))
    folder = next((place for place in places if (place / CONFIG_FILE).is_file()), None)
    if folder is None:
        raise WeightsError(
            f"{name}: no model in this folder; one has {CONFIG_FILE} and weights, as save_pretrained writes "
            "them here and in transformers, and a run folder has them in best/ or final/"
        )
    if _is_ours(folder):
        return adapt(from_pretrained(folder), wanted, name)
    return _from_transformers(str(folder), folder, wanted, name, offline())


def _from_transformers(
    place: str, folder: Path, wanted: Wanted, origin: str, access: AbstractContextManager[None]
) -> Segmenter:
    """The network of transformers at ``place``, whose settings are in ``folder``."""
    mean, std = normalisation(_read_json(folder / PREPROCESSOR_FILE))
    with access:
        model = open_transformers(place, _read_json(folder / CONFIG_FILE))
    return adapt(convert(model, head="softmax", mean=mean, std=std), wanted, origin)


def _is_ours(folder: Path) -> bool:
    """Whether config.json is one of ours; one that is neither ours nor of transformers is refused."""
    config = _read_json(folder / CONFIG_FILE)
    if config.get("library") == "gmmseg":
        return True
    if "model_type" not in config:
        raise WeightsError(
            f"{folder / CONFIG_FILE}: of no model known here; give a folder of ours or of transformers"
        )
    return False


def _read_json(path: Path) -> JSON:
    """What a file of settings says, nothing where it is not there."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not valid JSON ({error}); fetch or write it again") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path}: not settings of a model; fetch or write it again")
    return found


def _refuse_weights(name: str, weights: str | None) -> None:
    """What comes with its weights takes no others; "pretrained" is what it is anyway."""
    if weights not in (None, "pretrained"):
        raise ValueError(f"{name} comes with its weights: leave weights={weights} out (model.weights=null)")


@dataclass(frozen=True)
class Source:
    """A kind of network: an example of a name, what it is in a line, and how one is built.

    ``build`` is given the name without its prefix, what is wanted, and the weights of the backbone.
    """

    example: str
    summary: str
    build: Callable[[str, Wanted, str | None], Segmenter]


SOURCES: dict[str, Source] = {
    "hf": Source("hf:owner/name", "a trained network on the Hugging Face hub", _build_hub),
    "smp": Source("smp:Unet/resnet34", "a network of segmentation-models-pytorch", _build_smp),
    "torchvision": Source("torchvision:deeplabv3_resnet50", "a network of torchvision", _build_torchvision),
    "timm": Source("timm:resnet50", "a light decoder over any backbone of timm", _build_timm),
}
"""Prefix of a name -> where such networks come from."""
