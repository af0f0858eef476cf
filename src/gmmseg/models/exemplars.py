"""Training pixels that stand for the components of a model: an index in one file beside the weights.

exemplars.safetensors names the weights it belongs to. It holds small JPEG pictures and where they came from,
and nothing that could be run.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from gmmseg.atomic import write_bytes
from gmmseg.bounds import CountOrNone, NotNegative, Text, check_bounds
from gmmseg.json_tree import JSON
from gmmseg.models.weights import WeightsError

EXEMPLARS_FILE = "exemplars.safetensors"
EXEMPLARS_FORMAT = 1
_ENTRY, _CROPS = "exemplars", "crops"
_JPEG = b"\xff\xd8\xff"
_AGAIN = "write it again with `gmmseg explain MODEL --build --data NAME:ROOT:train`, or remove it"


@dataclass(frozen=True)
class Exemplar:
    """A training cell near the mean of a component: where it is, and a picture of its surroundings."""

    label: CountOrNone
    """Its class."""
    component: CountOrNone
    image: Text
    """Name of the training image."""
    x: CountOrNone
    y: CountOrNone
    distance: NotNegative
    """From the mean, in standard deviations of the component."""
    crop: bytes
    """A JPEG file."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.crop.startswith(_JPEG):
            raise ValueError("the picture of an exemplar is not a JPEG file")


def write_exemplars(exemplars: tuple[Exemplar, ...], weights: str, folder: Path) -> None:
    """Write the index of the weights with this digest into ``folder``, whole or not at all."""
    entries = [{**asdict(each), "crop": len(each.crop)} for each in exemplars]
    index = {"library": "gmmseg", "format": EXEMPLARS_FORMAT, "weights": weights, "exemplars": entries}
    crops = torch.frombuffer(
        bytearray(b"".join(each.crop for each in exemplars)) or bytearray(1), dtype=torch.uint8
    )
    write_bytes(folder / EXEMPLARS_FILE, save({_CROPS: crops}, metadata={_ENTRY: json.dumps(index)}))


def read_exemplars(folder: Path, weights: str) -> tuple[Exemplar, ...] | None:
    """The index in ``folder`` of the weights with this digest; None where there is no file.

    WeightsError for a file that is broken, or of other weights.
    """
    path = folder / EXEMPLARS_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            index = json.loads((file.metadata() or {})[_ENTRY])
            crops = bytes(file.get_tensor(_CROPS).numpy())
        return _from_index(index, crops, weights)
    except WeightsError as error:
        raise WeightsError(f"{path}: {error}; {_AGAIN}") from error
    except Exception as error:  # safetensors and JSON fail in many ways, and fields in all
        raise WeightsError(f"{path}: not an index of exemplars ({str(error)[:200]}); {_AGAIN}") from error


def _from_index(index: JSON, crops: bytes, weights: str) -> tuple[Exemplar, ...]:
    if index["library"] != "gmmseg" or index["format"] != EXEMPLARS_FORMAT:
        raise WeightsError(f"this version of gmmseg reads format {EXEMPLARS_FORMAT} of its own indices")
    if index["weights"] != weights:
        raise WeightsError("belongs to other weights")
    found, start = [], 0
    for entry in index["exemplars"]:
        end = start + entry["crop"]
        if not 0 <= start <= end <= len(crops):
            raise WeightsError("its pictures are not whole")
        found.append(Exemplar(**{**entry, "crop": crops[start:end]}))
        start = end
    return tuple(found)
