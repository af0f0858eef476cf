"""The door to torch.export: a segmenter as a graph in a .pt2, and such a file as something that predicts."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gmmseg.atomic import write_bytes
from gmmseg.inference.export_graph import OUTPUTS, POSTERIOR, ExportGraph, symbolic_sides
from gmmseg.inference.export_metadata import ExportedFileError, ExportMetadata, read_metadata
from gmmseg.models import Segmenter

ENTRIES = "gmmseg.json"
"""Name of the metadata among the extra files of a .pt2."""


def exported_program(
    segmenter: Segmenter, example: Tensor, *, posterior: bool
) -> torch.export.ExportedProgram:
    """The graph of a segmenter for images of any size; ``example`` (b 3 h w) as in `onnx_graph`."""
    graph = ExportGraph(segmenter, symbolic_sides, posterior=posterior).eval()
    free = torch.export.Dim.DYNAMIC
    with torch.no_grad(), quiet():
        program = torch.export.export(
            graph,
            (example, torch.tensor(0.0)),
            dynamic_shapes=({0: free, 2: free, 3: free}, None),
            strict=False,
        )
    return _without_assertions(program)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the lines that torch writes whenever the example decides a branch."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _without_assertions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without its claims about sizes: they say what was true of the example, and what holds for
    other sizes is found by comparing the file with the model."""
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def write_torch(segmenter: Segmenter, example: Tensor, metadata: ExportMetadata, path: Path) -> None:
    """Write a segmenter to ``path`` as an ExportedProgram, to be loaded by torch.export.load."""
    program = exported_program(segmenter, example, posterior=metadata.posterior)
    extra = {ENTRIES: json.dumps(metadata.entries())}
    # In memory first: where the disk is full, torch's own writer would end the process.
    made = io.BytesIO()
    torch.export.save(program, made, extra_files=extra)
    write_bytes(path, made.getbuffer())


class TorchModel:
    """A .pt2 file that `write_torch` wrote."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        extra = {ENTRIES: ""}
        try:
            program = torch.export.load(path, extra_files=extra)
        except Exception as error:  # archives fail in many ways
            raise ExportedFileError(
                f"{path}: torch.export cannot open it ({error}); export it again"
            ) from error
        self.metadata = read_metadata(_entries(extra[ENTRIES], path), path)
        # The guards speak of how tensors lie in memory at the size of the example, not of what is computed.
        self.module = program.module(check_guards=False)

    @torch.inference_mode()
    def __call__(self, images: Tensor, threshold: float | None = None) -> dict[str, Tensor]:
        """The outputs by name for images (b 3 h w); without a ``threshold`` with the calibrated one."""
        return named(self.module(images, threshold_tensor(threshold, self.metadata)))


def threshold_tensor(threshold: float | None, metadata: ExportMetadata) -> Tensor:
    """The threshold as a graph takes it; None: the calibrated one."""
    return torch.tensor(metadata.default_threshold if threshold is None else threshold, dtype=torch.float32)


def named(outputs: tuple[Tensor, ...] | list[Tensor]) -> dict[str, Tensor]:
    """The outputs of a graph by name."""
    return dict(zip((*OUTPUTS, POSTERIOR), outputs))


def _entries(text: str | bytes, path: Path) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ExportedFileError(f"{path}: without the metadata of gmmseg export; export it again") from error
    return found if isinstance(found, dict) else {}
