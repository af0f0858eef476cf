"""The door to OpenVINO: a segmenter as .xml and .bin, and such files as something that predicts."""

import errno
import hashlib
import os
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmmseg.atomic import naming
from gmmseg.inference.export_graph import INPUTS, OUTPUTS, POSTERIOR
from gmmseg.inference.export_metadata import PREFIX, ExportedFileError, ExportMetadata, read_metadata
from gmmseg.inference.onnx_format import needed, onnx_graph
from gmmseg.models import Segmenter

SECTION = PREFIX.rstrip(".")
"""Where metadata are in the runtime information of a model."""
OF_WEIGHTS = [SECTION, "sha256_of_weights"]
"""What the .bin beside a graph must be: two files cannot take their places in one step."""


def write_openvino(segmenter: Segmenter, example: Tensor, metadata: ExportMetadata, path: Path) -> None:
    """Write a segmenter to ``path`` (.xml, the graph) and its weights beside it (.bin)."""
    openvino = needed("openvino", "openvino")
    graph = onnx_graph(segmenter, example, posterior=metadata.posterior)
    model = openvino.Core().read_model(model=graph, weights=b"")
    for name, text in metadata.entries().items():
        model.set_rt_info(text, [SECTION, name.removeprefix(PREFIX)])
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            draft = Path(scratch) / path.name
            try:
                openvino.save_model(model, draft, compress_to_fp16=False)
                model.set_rt_info(_digest(draft.with_suffix(".bin")), OF_WEIGHTS)
                openvino.save_model(model, draft, compress_to_fp16=False)
            except RuntimeError as error:
                if "iostream" not in str(error):
                    raise
                raise OSError(errno.EIO, "cannot be written; is the disk full?", str(path)) from error
            # Weights first: a graph is not seen before its own weights are there.
            for suffix in (".bin", path.suffix):
                os.replace(draft.with_suffix(suffix), path.with_suffix(suffix))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class OpenVinoModel:
    """Files that `write_openvino` wrote, run on the CPU; ``threads``: None leaves the choice to it."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        core = needed("openvino", "openvino").Core()
        try:
            model = core.read_model(path)
        except RuntimeError as error:
            raise ExportedFileError(f"{path}: OpenVINO cannot open it ({error}); export it again") from error
        weights = path.with_suffix(".bin")
        if model.has_rt_info(OF_WEIGHTS) and model.get_rt_info(OF_WEIGHTS).astype(str) != _digest(weights):
            raise ExportedFileError(
                f"{weights}: not the weights that {path.name} was exported with; export both again"
            )
        places = {f"{PREFIX}{field.name}": [SECTION, field.name] for field in fields(ExportMetadata)}
        stored = {name: place for name, place in places.items() if model.has_rt_info(place)}
        entries = {name: model.get_rt_info(place).astype(str) for name, place in stored.items()}
        self.metadata = read_metadata(entries, path)
        settings = {"INFERENCE_NUM_THREADS": threads} if threads else {}
        # Single precision also where the processor has half: the answers are those of the other formats.
        self.compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **settings})
        self.names = [*OUTPUTS, *([POSTERIOR] if self.metadata.posterior else [])]

    def __call__(self, images: Tensor, threshold: float | None = None) -> dict[str, Tensor]:
        """The outputs by name for images (b 3 h w); without a ``threshold`` with the calibrated one."""
        value = self.metadata.default_threshold if threshold is None else threshold
        found = self.compiled({INPUTS[0]: images.numpy(), INPUTS[1]: np.array(value, dtype=np.float32)})
        return {name: torch.from_numpy(np.array(found[name])) for name in self.names}
