"""What must be quick and cheap, each in a fresh interpreter."""

import subprocess
import sys

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
    ]
    for words in (*([command] for command in commands), ["configs"], ["data", "check"], ["data", "list"]):
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output
        assert len(result.output) > 150


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
