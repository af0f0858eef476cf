"""Eight-bit ONNX files: static quantisation, its ranges found on labelled or unlabelled images."""

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmmseg.atomic import write_bytes
from gmmseg.inference.export_graph import INPUTS
from gmmseg.inference.onnx_format import SILENT, OnnxModel, needed
from gmmseg.inference.predictor import at_short_side

KEPT = re.compile(r"/network/(head|companions\.\d+/head|density)/|/[^/]*$")
"""Parts of the graph that stay in single precision: squares of points are not for eight bits, nor are the
sums of posteriors that follow the network."""
QUANTISED = ["Conv", "MatMul", "Gemm"]
MOST_IMAGES = 64
"""Ranges hardly change after this many images."""


class _Images:
    """Images (3 h w) in [0, 1] as onnxruntime's calibration asks for them: one after the other, then None."""

    def __init__(self, images: Iterable[Tensor], short_side: int | None) -> None:
        self.given: Iterator[dict[str, NDArray[np.float32]]] = (
            {INPUTS[0]: at_short_side(image[None], short_side).numpy()} for image in images
        )

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self.given, None)


def quantise(path: Path, images: Iterable[Tensor], out: Path) -> None:
    """Write the exported ONNX file ``path`` with eight-bit convolutions and products to ``out``.

    ``images`` (3 h w) in [0, 1], such as validation images, tell which values occur. The mixtures stay in
    single precision. Metadata are kept, with precision int8; threshold and temperature are still those of the
    model, whose scores the file now only approximates.
    """
    needed("onnxruntime", "onnx").set_default_logger_severity(SILENT)
    quantisation = needed("onnxruntime.quantization", "onnx")
    onnx = needed("onnx", "onnx")
    metadata = replace(OnnxModel(path).metadata, precision="int8")
    with tempfile.TemporaryDirectory() as scratch:
        plain, small = Path(scratch) / "plain.onnx", Path(scratch) / "int8.onnx"
        quantisation.quant_pre_process(path, plain, skip_symbolic_shape=True)
        nodes = onnx.load(plain).graph.node
        quantisation.quantize_static(
            plain,
            small,
            _Images(images, metadata.short_side),
            quant_format=quantisation.QuantFormat.QDQ,
            op_types_to_quantize=QUANTISED,
            nodes_to_exclude=[node.name for node in nodes if KEPT.match(node.name)],
            per_channel=True,
        )
        model = onnx.load(small)
    onnx.helper.set_model_props(model, metadata.entries())
    write_bytes(out, model.SerializeToString())
