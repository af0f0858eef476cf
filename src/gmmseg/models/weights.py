"""Weights from files, read safely, and never loaded in part without saying so."""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

PREFIXES = ("module.", "backbone.", "model.", "segformer.", "features.backbone.")


_FOREIGN = re.compile(r"Unsupported (global|class)|was not an allowed global", re.IGNORECASE)
"""What torch says of a pickle that names functions or classes of its own."""


class WeightsError(ValueError):
    """A file of weights cannot be read, or does not fit the network."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .pth file by name. A pickle that wants to run code is refused."""
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path}: no such file of weights")
    if not path.stat().st_size:
        raise WeightsError(f"{path}: empty, not a file of weights; fetch it again")
    state = _read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    for wrapper in ("state_dict", "model"):  # the usual boxes that training scripts put weights into
        if isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _read_safetensors(path: Path) -> dict:
    try:
        return load_file(path)
    except Exception as error:  # its own kind, and others for numbers that overflow or names that are no text
        raise WeightsError(
            f"{path}: not a whole safetensors file ({error}); fetch or write it again"
        ) from error


@contextmanager
def naming_broken(origin: str) -> Iterator[None]:
    """A broken safetensors file that another library reads inside is one line that begins with ``origin``."""
    try:
        yield
    except SafetensorError as error:
        raise WeightsError(
            f"{origin}: its weights are not a whole safetensors file ({error}); fetch or write it again"
        ) from error


def read_pickle(path: Path) -> dict:
    """The dict in a torch.save file, tensors and plain values only."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen kinds for broken files
        if isinstance(error, pickle.UnpicklingError) and (_FOREIGN.search(str(error)) or _is_pickle(path)):
            raise WeightsError(
                f"{path}: refused, it holds more than tensors and plain values, and loading it would run "
                "code. Convert it to safetensors where you trust it"
            ) from error
        raise WeightsError(f"{path}: not a whole file of weights; fetch it again") from error
    if not isinstance(state, dict):
        raise WeightsError(f"{path}: expected a dict of tensors, found {type(state).__name__}")
    return state


def _is_pickle(path: Path) -> bool:
    """Whether a file begins as pickles of any protocol since 2 do, without torch's zip around it."""
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def load_backbone(backbone: nn.Module, path: str | Path) -> None:
    """Fill ``backbone`` from a file. What the backbone needs and the file lacks is an error that lists it;
    what the file holds in addition (usually a classifier) is a warning that lists it."""
    expected = backbone.state_dict()
    found = _best_prefix(read_weights(path), expected)
    missing = [name for name in expected if name not in found and not name.endswith("num_batches_tracked")]
    wrong = [
        f"{name} {tuple(found[name].shape)}, needed {tuple(value.shape)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    if missing or wrong:
        raise WeightsError(
            f"{path} does not fit this backbone: {len(missing)} tensors missing{listed(missing)}; "
            f"{len(wrong)} of another shape{listed(wrong)}"
        )
    unused = [name for name in found if name not in expected]
    if unused:
        warnings.warn(
            f"{path}: {len(unused)} tensors not used by this backbone{listed(unused)}", stacklevel=2
        )
    backbone.load_state_dict({name: value for name, value in found.items() if name in expected}, strict=False)


def _best_prefix(found: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``found`` with the prefix stripped or added that makes most names meet ``expected``."""
    candidates = [found]
    for prefix in PREFIXES:
        candidates.append({name.removeprefix(prefix): value for name, value in found.items()})
        candidates.append({prefix + name: value for name, value in found.items()})
    return max(candidates, key=lambda candidate: len(candidate.keys() & expected.keys()))


def listed(names: list[str], most: int = 12) -> str:
    """``names`` for the end of a message, the first of them written out."""
    if not names:
        return ""
    return ": " + ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
