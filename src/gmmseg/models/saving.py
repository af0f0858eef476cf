"""The files of a segmenter: config.json and model.safetensors, in the Hugging Face manner.

What was found after training is kept beside them, see `calibration_file`, and so is a card for people.
"""

import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

import gmmseg
from gmmseg.atomic import write_bytes
from gmmseg.bounds import Ge, Le, Positive, broken_rule, shown
from gmmseg.json_tree import JSON, Value
from gmmseg.labels import IGNORE
from gmmseg.models.calibration_file import possible_scores, remove_calibration, write_calibration
from gmmseg.models.card import write_card
from gmmseg.models.companion import Companion
from gmmseg.models.weights import WeightsError, read_weights

if TYPE_CHECKING:
    from gmmseg.mixture import ClassMixture
    from gmmseg.models.segmenter import Segmenter

Byte = Annotated[int, Ge(0), Le(255)]
ClassCount = Annotated[int, Ge(1), Le(IGNORE)]
_KINDS: dict[str, object] = {
    "recipe": dict | None,
    "label_names": tuple[str, ...] | None,
    "colours": tuple[tuple[Byte, Byte, Byte], ...] | None,
    # Files of format 1 held what was found after training.
    "threshold": float | None,
    "temperature": Positive,
    "typical": tuple[float, ...] | None,
}
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
RUN_PARTS = ("best", "final")
"""Folders of weights in a run folder, the better first."""
FORMAT = 2
READABLE_FORMATS = (1, FORMAT)
CHECKSUM = "sha256"


def write_checkpoint(segmenter: "Segmenter", folder: Path) -> None:
    """Write both files, the calibration if there is one, and the card to ``folder``; each whole or not at
    all."""
    for what, values in (("label_names", segmenter.label_names), ("colours", segmenter.colours)):
        if values is not None and len(values) != segmenter.num_classes:
            raise ValueError(f"{what} has {len(values)} entries for {segmenter.num_classes} classes")
    # Removed first, written last: at no time does one lie beside weights it does not belong to.
    remove_calibration(folder)
    state = {
        name: value.detach().cpu().contiguous().clone() for name, value in segmenter.state_dict().items()
    }
    # The checksum is the only entry: several come in a random order, and equal weights in unequal files.
    write_bytes(folder / WEIGHTS_FILE, save(state, metadata={CHECKSUM: checksum(state)}))
    write_bytes(folder / CONFIG_FILE, (json.dumps(describe(segmenter), indent=2) + "\n").encode())
    _write_own_calibration(segmenter, folder)
    write_card(folder, describe(segmenter), digest(segmenter), RUN_PARTS)


def refresh_card(folder: Path) -> None:
    """Write the model card again, of the files that are there now; see `gmmseg.models.card`."""
    weights = digest_of(read_weights(folder / WEIGHTS_FILE))
    write_card(folder, read_config(folder), weights, RUN_PARTS)


def _write_own_calibration(segmenter: "Segmenter", folder: Path) -> None:
    """Write the segmenter's calibration; one that its weights have outlived is left out with a warning."""
    if segmenter.calibration is None:
        return
    try:
        scores = possible_scores(segmenter.density is not None)
        segmenter.calibration.check_model(
            digest(segmenter), segmenter.num_classes, segmenter.label_names, scores
        )
    except ValueError as error:
        warnings.warn(
            f"{folder}: the calibration {error} and is not saved; calibrate again with `gmmseg calibrate`",
            stacklevel=4,
        )
        return
    write_calibration(segmenter.calibration, folder)


def checksum(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, whatever the order; kept in the file of weights."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe(segmenter: "Segmenter") -> JSON:
    """The contents of config.json: how to build the network, its classes, how it looks at images."""
    return {
        "library": "gmmseg",
        "format": FORMAT,
        "version": gmmseg.__version__,
        "num_classes": segmenter.num_classes,
        "recipe": segmenter.recipe,
        "label_names": segmenter.label_names,
        "colours": segmenter.colours,
        "inference": asdict(segmenter.inference),
        "density": None if segmenter.density is None else asdict(segmenter.density.settings),
        "companions": [_describe_companion(each) for each in segmenter.companions],
        "groups": {part: mixture.groups for part, mixture in mixtures(segmenter).items()},
    }


def _describe_companion(companion: nn.Module) -> JSON:
    """How to build a classifier beside the head again."""
    assert isinstance(companion, Companion)
    return {
        "kind": companion.kind,
        "head": asdict(companion.settings),
        "num_classes": companion.head.num_classes,
        "members": companion.members,
    }


def mixtures(segmenter: "Segmenter") -> "dict[str, ClassMixture]":
    """The mixtures of a segmenter by where they are: of its head, of the density beside it."""
    density = segmenter.density
    found = {"head": segmenter.mixture, "density": None if density is None else density.mixture}
    return {part: mixture for part, mixture in found.items() if mixture is not None}


def digest(segmenter: "Segmenter") -> str:
    """Twelve characters that tell the tensors of a segmenter from those of another."""
    return digest_of(segmenter.state_dict())


def digest_of(state: Mapping[str, Tensor]) -> str:
    """What `digest` says of the segmenter whose tensors these are, by name."""
    found = hashlib.sha256()
    for name, value in sorted(state.items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:12]


def read_config(folder: Path) -> JSON:
    """config.json of ``folder``, checked to be one of ours."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        inside = next((folder / part for part in RUN_PARTS if (folder / part / CONFIG_FILE).is_file()), None)
        raise WeightsError(
            f"{path} is missing: a segmenter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}"
            + (f"; this is a run folder, its weights are in {inside}" if inside else "")
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not valid JSON ({error}); fetch or write it again") from error
    if not isinstance(config, dict) or config.get("library") != "gmmseg":
        raise WeightsError(
            f"{path}: not the configuration of a gmmseg segmenter; to use another library's model, "
            "load it there and give it to gmmseg.convert"
        )
    if config.get("format") not in READABLE_FORMATS:
        raise WeightsError(
            f"{path}: format {config.get('format')}, this version of gmmseg reads formats up to {FORMAT}"
        )
    fault = next(_faults(config), None)
    if fault:
        raise WeightsError(f"{path}: {fault}; fetch or write it again")
    return config


def _faults(config: JSON) -> Iterator[str]:
    """What is missing or of the wrong kind in a configuration of the present format."""
    needed = ["num_classes", "recipe", "label_names", "colours"]
    needed += ["threshold"] if config["format"] == 1 else []
    missing = [key for key in needed if key not in config]
    if missing:
        yield f"without {', '.join(missing)}"
        return
    classes = config["num_classes"]
    if broken_rule(classes, ClassCount):
        yield f"num_classes {broken_rule(classes, ClassCount)}, got {shown(classes)}"
        return
    # These are missing where nothing was found after training, or it is in a file of its own.
    filled = {"threshold": None, "temperature": 1.0, "typical": None, **config}
    for key, kind in _KINDS.items():
        value = _tuples(filled[key])
        fault = broken_rule(value, kind)
        if fault:
            yield f"{key} {fault}, got {shown(value)}"
        elif isinstance(value, tuple) and value and len(value) != classes:
            yield f"{key} has {len(value)} entries for {classes} classes"


def _tuples(value: Value) -> Value:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def read_state(segmenter: "Segmenter", folder: Path) -> None:
    """Fill ``segmenter`` from model.safetensors; what is missing, left over, misshapen
    or not finite is an error."""
    path = folder / WEIGHTS_FILE
    state = read_weights(path)
    _check_whole(path, state)
    _check_finite(path, state)
    expected = segmenter.state_dict()
    state = present_names(state, expected)
    faults = [f"missing {name}" for name in expected if name not in state]
    faults += [f"unexpected {name}" for name in state if name not in expected]
    faults += [
        f"{name}: {tuple(state[name].shape)} in the file, {tuple(value.shape)} in the network"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    if faults:
        raise WeightsError(
            f"{path} does not fit the architecture ({len(faults)} differences): " + "; ".join(faults[:8])
        )
    _copy_state(segmenter, state)


def present_names(state: Mapping[str, Tensor], expected: Iterable[str]) -> dict[str, Tensor]:
    """Tensors that an earlier version may have written, under the names they have today.

    ``expected``: the names of the network they are meant for. Names among them stay.
    """
    known = set(expected)
    return {_present_name(name, known): value for name, value in state.items()}


def _present_name(name: str, expected: set[str]) -> str:
    if name in expected:
        return name
    name = name.replace(".mixture.whitening.", ".mixture.coordinates.")
    if name.startswith("companion."):  # while there was one at the most
        name = name.replace("companion.", "companions.0.", 1)
    # Where unit length was a part of the projection, its linear layer was the first of two.
    alone = name.replace(".projection.0.", ".projection.")
    return alone if alone in expected else name


def _check_whole(path: Path, state: dict[str, Tensor]) -> None:
    """Refuse values that changed since they were written; files of earlier versions keep no checksum."""
    with safe_open(path, framework="pt") as file:
        kept = (file.metadata() or {}).get(CHECKSUM)
    if kept is not None and kept != checksum(state):
        raise WeightsError(
            f"{path}: damaged, its values do not fit the checksum kept in it; fetch or write it again"
        )


def _check_finite(path: Path, state: dict[str, Tensor]) -> None:
    """Refuse what no network can compute with: all it says would be NaN."""
    broken = [
        name
        for name, value in state.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    if broken:
        raise WeightsError(
            f"{path}: {len(broken)} of its tensors hold NaN or infinity ({', '.join(broken[:4])}), so "
            "training diverged or it is damaged; use weights of an earlier step, or train again"
        )


@torch.no_grad()
def _copy_state(segmenter: "Segmenter", state: dict[str, Tensor]) -> None:
    for name, value in segmenter.state_dict().items():
        value.copy_(state[name])


def push_checkpoint(segmenter: "Segmenter", repo_id: str, *, private: bool, token: str | None) -> str:
    """Upload both files to a repository of the hub, which is created if need be; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_checkpoint(segmenter, Path(scratch))
        api.upload_folder(repo_id=repo_id, folder_path=scratch)
    return f"https://huggingface.co/{repo_id}"
