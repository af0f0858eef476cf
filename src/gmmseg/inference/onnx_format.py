"""The door to ONNX: a segmenter as a .onnx file, and such a file as something that predicts."""

import io
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from gmmseg.atomic import write_bytes
from gmmseg.inference.export_graph import (
    INPUTS,
    OUTPUTS,
    POSTERIOR,
    Decide,
    ExportGraph,
    by_softmax,
    in_steps,
    traced_sides,
)
from gmmseg.inference.export_metadata import ExportedFileError, ExportMetadata, read_metadata
from gmmseg.inference.onnx_resize import antialiased_resize
from gmmseg.models import Segmenter

OPSET = 18
SILENT = 4
"""Severity from which on onnxruntime speaks: it warns of every input with a default, which is on purpose, and
says twice what it raises."""


def onnx_graph(
    segmenter: Segmenter, example: Tensor, *, posterior: bool, decide: Decide = by_softmax
) -> bytes:
    """The graph of a segmenter as ONNX, its threshold an input without a default.

    ``example`` (b 3 h w): images that are sent through while the operators are recorded. Recorded and not
    analysed by torch.export, whose sizes as symbols take minutes for networks with many strides.
    """
    graph = ExportGraph(segmenter, traced_sides, posterior=posterior, decide=decide).eval()
    names = [*OUTPUTS, *([POSTERIOR] if posterior else [])]
    axes = {name: {0: "batch", 1: "height", 2: "width"} for name in OUTPUTS}
    maps = {0: "batch", 2: "height", 3: "width"}
    torch.onnx.register_custom_op_symbolic("aten::_upsample_bicubic2d_aa", antialiased_resize, OPSET)
    # What the exporter prints where it fails is the whole graph; the reason is in its error.
    printed = redirect_stdout(io.StringIO())
    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch, printed:
        path = Path(scratch) / "graph.onnx"
        warnings.simplefilter("ignore")  # sizes that steer Python are compared with the model afterwards
        torch.onnx.export(
            graph,
            (example, torch.tensor(0.0)),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=names,
            dynamic_axes={INPUTS[0]: maps, **axes, **({POSTERIOR: maps} if posterior else {})},
        )
        return path.read_bytes()


def with_metadata(graph: bytes, metadata: ExportMetadata) -> bytes:
    """An ONNX graph with the default of its threshold and with metadata."""
    onnx = needed("onnx", "onnx")
    model = onnx.load_from_string(graph)
    default = np.array(metadata.default_threshold, dtype=np.float32)
    # An input that has an initializer of the same name is optional: the initializer is its default.
    model.graph.initializer.append(onnx.numpy_helper.from_array(default, INPUTS[1]))
    for output in model.graph.output:
        if output.name == POSTERIOR:
            output.type.tensor_type.shape.dim[1].dim_value = len(metadata.classes)
    onnx.helper.set_model_props(model, metadata.entries())
    model.producer_name, model.producer_version = "gmmseg", metadata.version
    return model.SerializeToString()


def write_onnx(segmenter: Segmenter, example: Tensor, metadata: ExportMetadata, path: Path) -> None:
    """Write a segmenter to ``path`` as one ONNX file."""
    needed("onnx", "onnx")
    graph = onnx_graph(segmenter, example, posterior=metadata.posterior, decide=in_steps)
    write_bytes(path, with_metadata(graph, metadata))


class OnnxModel:
    """An ONNX file that `write_onnx` wrote, run by onnxruntime; ``threads``: None leaves the choice to it."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        runtime = needed("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.log_severity_level = SILENT
        options.intra_op_num_threads = threads or 0
        try:
            self.session = runtime.InferenceSession(
                path, options, providers=runtime.get_available_providers()
            )
        except Exception as error:  # the runtime has an exception class of its own for each kind of fault
            raise ExportedFileError(
                f"{path}: onnxruntime cannot open it ({error}); export it again"
            ) from error
        self.metadata = read_metadata(self.session.get_modelmeta().custom_metadata_map, path)
        self.names = [output.name for output in self.session.get_outputs()]
        given = [each.name for each in self.session.get_inputs()]
        if given != [INPUTS[0]] or not set(OUTPUTS) <= set(self.names):
            raise ExportedFileError(
                f"{path}: not a graph that gmmseg has exported (inputs {', '.join(given)}; outputs "
                f"{', '.join(self.names)}); write it with gmmseg export"
            )

    def __call__(self, images: Tensor, threshold: float | None = None) -> dict[str, Tensor]:
        """The outputs by name for images (b 3 h w); without a ``threshold`` with the calibrated one."""
        given = {INPUTS[0]: images.numpy()}
        if threshold is not None:
            given[INPUTS[1]] = np.array(threshold, dtype=np.float32)
        return dict(zip(self.names, map(torch.from_numpy, self.session.run(None, given))))


def needed(library: str, extra: str) -> ModuleType:
    """An optional library; where it is missing, how to install it."""
    import importlib

    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"{library} is not installed: pip install 'gmmseg[{extra}]'") from error
