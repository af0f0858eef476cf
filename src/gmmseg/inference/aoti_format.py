"""The door to AOTInductor: a segmenter compiled for this machine, in a .pt2, and how it predicts."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gmmseg.atomic import naming, write_bytes
from gmmseg.inference.export_metadata import ExportedFileError, ExportMetadata, read_metadata
from gmmseg.inference.torch_format import exported_program, named, quiet, threshold_tensor
from gmmseg.models import Segmenter

SETTINGS = {
    "freezing": True,
    "layout_optimization": False,
    "scalar_asserts": False,
    "cpp.dynamic_threads": True,
}
"""With the first two, torch 2.13 compiles convolutions over free sizes right. It takes their outputs for
contiguous: with constants frozen, most are oneDNN's, whose layout it knows; without a layout of its choice
the others are contiguous. The third leaves out claims about sizes, as `exported_program` does. The last
leaves the number of threads to whoever runs the file."""


def write_aoti(segmenter: Segmenter, example: Tensor, metadata: ExportMetadata, path: Path) -> None:
    """Write a segmenter to ``path``, compiled for this machine; needs a C++ compiler."""
    from torch._inductor import aoti_compile_and_package

    program = exported_program(segmenter, example, posterior=metadata.posterior)
    _tell_sizes_of_example(program)
    settings = {**SETTINGS, "aot_inductor.metadata": metadata.entries()}
    made = io.BytesIO()  # where the disk is full, torch's own writer would end the process
    with naming(path), torch.no_grad(), quiet(), _reciprocals_have_bounds():
        aoti_compile_and_package(program, package_path=made, inductor_configs=settings)
    write_bytes(path, made.getbuffer())


def _tell_sizes_of_example(program: torch.export.ExportedProgram) -> None:
    """Tell the compiler the example's values of the sizes that the graph works out (`symbolic_sides`).

    It orders strides by the values of their sizes, and refuses what depends on an order that it cannot find.
    """
    values = (node.meta.get("val") for node in program.graph.nodes)
    shapes = next((each.node.shape_env for each in values if isinstance(each, torch.SymInt)), None)
    if shapes is None:
        return
    for symbol, value in shapes.real_tensor_prop_unbacked_vals.items():
        if symbol not in shapes.backed_var_to_val:
            shapes.add_backed_var_to_val(symbol, int(value))


@contextmanager
def _reciprocals_have_bounds() -> Iterator[None]:
    """torch 2.13 gives 1/n, which appears where it compares strides, the bounds 0 and -1, and then refuses
    them. Here a negative power of an integer may be any number."""
    from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges

    of_torch = SymPyValueRangeAnalysis.__dict__["pow_by_natural"]
    bounds = SymPyValueRangeAnalysis.pow_by_natural

    def pow_by_natural(base: object, exponent: object) -> object:
        return ValueRanges.unknown_int() if ValueRanges.wrap(exponent).upper < 0 else bounds(base, exponent)

    SymPyValueRangeAnalysis.pow_by_natural = staticmethod(pow_by_natural)  # type: ignore[method-assign]
    try:
        yield
    finally:
        SymPyValueRangeAnalysis.pow_by_natural = of_torch  # type: ignore[method-assign]


class AotiModel:
    """A file that `write_aoti` wrote, on a machine of the same kind."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        from torch._inductor import aoti_load_package

        try:
            self.runner = aoti_load_package(str(path))
        except Exception as error:  # archives and linkers fail in many ways
            raise ExportedFileError(
                f"{path}: cannot be loaded ({error}); export it on this machine"
            ) from error
        self.metadata = read_metadata(self.runner.get_metadata(), path)

    @torch.inference_mode()
    def __call__(self, images: Tensor, threshold: float | None = None) -> dict[str, Tensor]:
        """The outputs by name for images (b 3 h w); without a ``threshold`` with the calibrated one."""
        if images.dtype != torch.float32 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"a compiled file takes images (b 3 h w) of float32, got {tuple(images.shape)} {images.dtype}"
            )
        # Compiled code reads memory as it lies.
        return named(self.runner(images.contiguous(), threshold_tensor(threshold, self.metadata)))
