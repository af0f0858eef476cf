"""The house plan: imports point downwards only, and each foreign library has one door."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gmmseg"
# Rooms from the ground up; a room may import those below it, never one above or beside it.
GROUND = {
    "labels",
    "samples",
    "atomic",
    "float_order",
    "distributed",
    "bounds",
    "images",
    "printable",
    "json_tree",
    "hub_access",
    "class_colours",
    "allocator",
}  # single files that stand on nothing
BELOW = {
    **{file: set() for file in sorted(GROUND)},
    "samples": {"labels", "images", "distributed"},
    "mixture": GROUND,
    "models": GROUND | {"mixture"},
    "data": GROUND,
    "inference": GROUND | {"mixture", "models"},
    "training": GROUND | {"mixture", "models"},
    "evaluation": GROUND | {"mixture", "inference"},
    "report": GROUND | {"inference"},
}
DOORS = {
    "timm": {"models/backbones.py"},
    "transformers": {"models/huggingface.py", "models/conversion.py"},
    "segmentation_models_pytorch": {"models/smp.py"},
    "torchmetrics": {"evaluation/pooled.py"},
    "matplotlib": {"report/plots.py"},
    "accelerate": {"training/trainer.py", "run/building.py", "run/train.py", "run/adapt.py", "cli.py"},
    "annotated_types": {"bounds.py"},
    "yaml": {"config.py"},
    "pydantic": {"config.py"},
    "typer": {path.name for path in SOURCE.glob("cli*.py")} | {"terminal.py"},
    "huggingface_hub": {"models/saving.py", "models/hub.py", "hub_access.py", "data/parquet.py"},
    "datasets": {"data/parquet.py", "data/parquet_columns.py"},
    "pyarrow": {"data/parquet.py"},
    "fsspec": {"data/parquet.py"},
    "gradio": {"report/live.py"},
    "starlette": {"report/live.py"},
    "av": {"inference/video.py"},
    "h5py": {"evaluation/score_files.py"},
    "onnx": {"inference/onnx_format.py"},
    "onnxruntime": {"inference/onnx_format.py", "inference/int8.py"},
    "openvino": {"inference/openvino_format.py"},
}
FILES = sorted(SOURCE.rglob("*.py"))
ANY = {
    "json_tree.py": 1,  # what JSON files hold is known only once they are read
    "training/batch_norm.py": 2,  # torch hands over the arguments of any function there is
}
"""File -> how often it says ``Any``."""


def imports(path):
    """Dotted names imported anywhere in a file, except for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "gmmseg":
                yield from (f"gmmseg.{alias.name}" for alias in node.names)


def functions():
    """Every function and method with its file."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_downwards(room):
    files = [SOURCE / f"{room}.py"] if room in GROUND else sorted((SOURCE / room).rglob("*.py"))
    for path in files:
        for name in imports(path):
            if name.startswith("gmmseg."):
                target = name.split(".")[1]
                assert target == room or target in BELOW[room], f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize("library", DOORS)
def test_a_foreign_library_has_one_door(library):
    users = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users <= DOORS[library], f"{library} is imported by {sorted(users - DOORS[library])}"


def test_processes_talk_through_one_module():
    users = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if any(name.startswith("torch.distributed") for name in imports(path))
    }
    assert users == {"distributed.py"}


def test_configuration_is_read_at_the_top_alone():
    for path in FILES:
        if path.parent not in (SOURCE, SOURCE / "run"):
            assert not any(name.startswith("gmmseg.config") for name in imports(path)), path


def test_nothing_below_the_command_line_prints():
    for path in FILES:
        if path.name != "cli.py":
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), (
                path
            )


def test_types_say_what_things_are():
    """``Any`` stands where the reason is named, and nowhere else; nobody asks an object what it has."""
    found = {}
    for path in FILES:
        names = [node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)]
        assert "hasattr" not in names, f"{path}: name a protocol"
        if "Any" in names:
            found[str(path.relative_to(SOURCE))] = names.count("Any")
    assert found == ANY


def test_functions_are_short():
    for path, function in functions():
        lines = function.end_lineno - function.lineno + 1
        assert lines <= 40, f"{path.relative_to(SOURCE)}: {function.name} has {lines} lines"


def test_constructors_take_few_arguments():
    """Settings, which are many, come as one object; the constructors of data classes are not written here."""
    for path, function in functions():
        if function.name == "__init__":
            given = function.args
            count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
            assert count <= 8, f"{path.relative_to(SOURCE)}:{function.lineno} takes {count} arguments"


def test_no_file_name_is_in_two_rooms():
    names = [path.name for path in FILES if path.name != "__init__.py"]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
