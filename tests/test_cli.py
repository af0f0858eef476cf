"""What must be quick and cheap, each in a fresh interpreter."""

import re
import subprocess
import sys

import pytest

HEAVY = ("timm", "transformers", "segmentation_models_pytorch", "torchvision", "matplotlib", "accelerate",
         "torchmetrics", "gradio", "scipy")  # fmt: skip


def modules_after(code):
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return set(run.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_torch_and_nothing_heavier():
    loaded = modules_after("import gmmseg")
    assert not loaded & set(HEAVY)


def test_help_does_not_even_load_torch():
    code = (
        "import sys\nsys.argv = ['gmmseg', '--help']\nfrom gmmseg.cli import main\n"
        "try: main()\nexcept SystemExit: pass"
    )
    assert not modules_after(code) & {"torch", *HEAVY}


def test_every_command_explains_itself():
    from typer.testing import CliRunner

    from gmmseg.cli import app

    commands = [
        "train",
        "convert",
        "adapt",
        "app",
        "fit",
        "calibrate",
        "evaluate",
        "score",
        "compare",
        "predict",
        "demo",
        "report",
        "import",
        "zoo",
        "add-class",
        "remove-class",
        "rename-class",
        "merge-classes",
        "explain",
        "export",
        "bench",
    ]
    for words in (*([command] for command in commands), ["configs"], ["data", "check"], ["data", "list"]):
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output
        assert len(result.output) > 150


def test_the_help_begins_with_what_a_new_user_needs_and_leaves_nothing_out():
    from typer.testing import CliRunner

    from gmmseg.cli import app

    output = CliRunner().invoke(app, ["--help"]).output
    shown = re.findall(r"^\W*([a-z]+(?:-[a-z]+)*) {2,}[A-Z]", output, re.MULTILINE)
    assert shown[:7] == ["demo", "data", "train", "evaluate", "predict", "report", "app"]
    assert len(shown) == len(set(shown)) == len(app.registered_commands) + len(app.registered_groups)


def test_the_version_is_the_packages_and_loads_no_torch():
    code = (
        "import sys\nsys.argv = ['gmmseg', '--version']\nfrom gmmseg.cli import main\n"
        "try: main()\nexcept SystemExit as done: print('code', done.code)"
    )
    assert not modules_after(code) & {"torch", *HEAVY}
    from importlib.metadata import version

    from typer.testing import CliRunner

    from gmmseg.cli import app

    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"gmmseg {version('gmmseg')}\n")


def test_the_preset_option_is_the_override_of_that_name():
    from typer.testing import CliRunner

    from gmmseg.cli import app
    from gmmseg.config import dump_config, load_config

    words = ["train", "scenes", "em.loops=2", "--print-config", "--preset"]
    result = CliRunner().invoke(app, [*words, "paper"])
    assert result.output == dump_config(load_config("scenes", ["preset=paper", "em.loops=2"]))
    refused = CliRunner().invoke(app, [*words, "papre"])
    assert "preset is 'papre': choose paper" in str(refused.exception)


def _commands(group, above=()):
    for name, command in group.commands.items():
        words = (*above, name)
        yield words, command
        if getattr(command, "commands", None):
            yield from _commands(command, words)


def test_no_help_is_cut_where_the_terminal_is_narrow(monkeypatch):
    """Every word of every help text is there in 80 columns; boxes and line ends apart."""
    import typer
    from typer.testing import CliRunner

    from gmmseg.cli import app

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    boxes = {ord(each): " " for each in "│╭╮╰╯"}
    for words, command in _commands(typer.main.get_command(app)):
        output = CliRunner().invoke(app, [*words, "--help"]).output
        assert "…" not in output
        assert max(map(len, output.splitlines())) <= 80
        # Word by word: beside the text of an option, its range takes lines of its own.
        shown = set(output.translate(boxes).split())
        for text in (command.help, *(option.help for option in command.params)):
            assert set((text or "").split()) <= shown, (words, text)


def test_the_package_is_the_command_and_completes_in_the_shell():
    code = (
        "import os, runpy, sys\nsys.argv = ['gmmseg', *%r]\nos.environ.update(%r)\n"
        "try: runpy.run_module('gmmseg', run_name='__main__')\nexcept SystemExit: pass"
    )
    run = subprocess.run(
        [sys.executable, "-c", code % (["--version"], {})], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.startswith("gmmseg ")
    for words, completed in (
        ("gmmseg da", "data"),
        ("gmmseg train cityscapes_f", "cityscapes_fcn_resnet101"),
    ):
        place = str(len(words.split()) - 1)
        wanted = {"_GMMSEG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        script = code % ([], wanted)
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert run.stdout.split() == [completed], run.stderr
    assert not modules_after(script) & {"torch", *HEAVY}


def test_presets_that_a_shell_completes_are_those_there_are():
    from gmmseg.cli_options import _presets
    from gmmseg.models.heads import HEAD_PRESETS

    assert set(_presets("")) == set(HEAD_PRESETS)
    assert _presets("pa") == ["paper"]


def test_errors_of_workers_and_other_processes_are_one_line_of_ours():
    """A DataLoader hands on a worker's whole traceback; gloo speaks of its own sources."""
    from torch.utils.data import DataLoader

    from gmmseg.cli import _in_a_line

    def broken(index):
        raise ValueError(f"images/{index[0]}.png: cannot be read; replace or remove it")

    with pytest.raises(ValueError, match="Original Traceback") as caught:
        next(iter(DataLoader([0, 1], num_workers=1, collate_fn=broken)))
    assert _in_a_line(caught.value) == "images/0.png: cannot be read; replace or remove it"
    gloo = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1. This is typically")
    assert _in_a_line(gloo).startswith("another process has failed")
    assert _in_a_line(ValueError("plain")) == "plain"
    assert _in_a_line(ValueError()) == "ValueError"
