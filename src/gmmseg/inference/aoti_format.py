"""The door to AOTInductor: a segmenter compiled for this machine, in a .pt2, and how it predicts."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from gmmseg.atomic import naming
from gmmseg.inference.export_metadata import ExportedFileError, ExportMetadata, read_metadata
from gmmseg.inference.torch_format import exported_program, named, threshold_tensor
from gmmseg.models import Segmenter


def write_aoti(segmenter: Segmenter, example: Tensor, metadata: ExportMetadata, path: Path) -> None:
    """Write a segmenter to ``path``, compiled for this machine; needs a C++ compiler."""
    from torch._inductor import aoti_compile_and_package

    program = exported_program(segmenter, example, posterior=metadata.posterior)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            package = Path(scratch) / "model.pt2"
            settings = {"aot_inductor.metadata": metadata.entries()}
            aoti_compile_and_package(program, package_path=str(package), inductor_configs=settings)
            package.replace(path)


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
        return named(self.runner(images, threshold_tensor(threshold, self.metadata)))
