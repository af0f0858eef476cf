"""Make ``import torchvision`` work beside a torch its compiled library was not built for.

A torchvision wheel built for CUDA cannot load its compiled library next to a CPU-only torch. It
swallows that failure and then dies registering a fake kernel for an operator that was never defined
(``operator torchvision::nms does not exist``), taking timm, transformers, torchmetrics and
segmentation-models-pytorch down with it. Nothing in gmmseg needs the compiled operators, so it is
enough to declare the missing schemas and to run the import again.

:func:`install` imports nothing: it waits in ``sys.meta_path`` for the first ``import torchvision``.
A healthy installation is left exactly as it is.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list = []  # torch drops the schemas again when the Library object dies


def install() -> None:
    """Watch for the first import of torchvision; harmless to call twice, or after that import."""
    watching = any(isinstance(finder, _TorchvisionFinder) for finder in sys.meta_path)
    if not watching and "torchvision" not in sys.modules:
        sys.meta_path.insert(0, _TorchvisionFinder())


def declare_missing_operators() -> None:
    """Define the schemas torchvision expects of its compiled library."""
    from torch.library import Library

    library = Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)


class _TorchvisionFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _SecondChance(spec.loader)
        return spec


class _SecondChance(Loader):
    """Runs the real loader; on exactly the known failure, cures it and runs the loader again."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self.loader.exec_module(module)
        except RuntimeError as error:
            if _SYMPTOM not in str(error):
                raise
            for name in [name for name in sys.modules if name.startswith("torchvision.")]:
                del sys.modules[name]
            declare_missing_operators()
            self.loader.exec_module(module)
