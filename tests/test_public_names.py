"""The names of the package: what editors and type checkers see is what is there."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gmmseg

PACKAGE = Path(gmmseg.__file__).parent
SNIPPET = """
import gmmseg
model = gmmseg.Segmenter.from_pretrained("folder")
reveal_type(model)
reveal_type(gmmseg.build("tiny_unet", num_classes=3, preset="paper"))
reveal_type(gmmseg.Predictor(model))
reveal_type(gmmseg.PRESETS)
gmmseg.nonsense
gmmseg.build("tiny_unet", num_classes="3")
"""


def seen_by_type_checkers():
    """Public name -> module, as imported under TYPE_CHECKING."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(branch.test) == "TYPE_CHECKING"
    imports = (node for node in branch.body if isinstance(node, ast.ImportFrom))
    return {alias.name: node.module for node in imports for alias in node.names}


def test_every_public_name_is_static_and_the_one_that_is_loaded():
    static = seen_by_type_checkers()
    assert sorted([*static, "__version__"]) == sorted(gmmseg.__all__) == dir(gmmseg)
    for name, module in static.items():
        assert getattr(gmmseg, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gmmseg.nonsense


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.slow
def test_a_type_checker_knows_the_names(tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "snippet.py",
    ]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500).stdout
    for kind in ("gmmseg.models.segmenter.Segmenter", "gmmseg.inference.predictor.Predictor", "EMSettings"):
        assert f"{kind}" in said
    assert 'Module has no attribute "nonsense"' in said
    assert 'Argument "num_classes" to "build" has incompatible type "str"' in said
    assert "Any" not in said
