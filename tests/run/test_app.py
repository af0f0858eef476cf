"""Which models and examples the page opens with."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import gmmseg
from gmmseg import cli, cli_app
from gmmseg.config import dump_config, load_config
from gmmseg.run import app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def models(tmp_path):
    """What `gmmseg demo` leaves: two runs with weights and configuration."""
    torch.manual_seed(0)
    for name in ("gmm", "softmax"):
        folder = tmp_path / "demo" / name
        gmmseg.build("tiny_unet", num_classes=10, head="softmax").save_pretrained(folder / "best")
        (folder / "config.yaml").write_text(dump_config(load_config("scenes")))
    return tmp_path


def test_without_a_model_the_demos_are_taken(models):
    found = app._demo_models(models / "demo")
    assert list(app._named(found)) == ["gmm", "softmax"]
    with pytest.raises(FileNotFoundError, match=r"give --model DIR, or train two with `gmmseg demo`"):
        app._demo_models(models / "elsewhere")


def test_models_of_one_name_are_told_apart_and_twice_the_same_is_refused(models):
    first, second = str(models / "demo/gmm/best"), str(models / "demo/softmax/best")
    assert list(app._named([first, second])) == [first, second]
    with pytest.raises(ValueError, match="given twice"):
        app._named([first, first])
    with pytest.raises(ValueError, match="given twice"):
        app._named([first, f"{first}/"])
    with pytest.raises(ValueError, match="given twice"):
        app._named([first, str(models / "demo/gmm")])


def test_a_host_that_is_no_address_is_refused_before_models_are_read(models):
    pytest.importorskip("gradio", reason="the page needs the extra app")
    with (
        pytest.raises(ValueError, match=r"--host 300\.1\.1\.1: no address of this machine"),
        app.live_page([str(models / "demo/gmm")], host="300.1.1.1"),
    ):
        pass
    for host in ("192.0.2.1", "8.8.8.8"):  # well formed, and another machine's
        with pytest.raises(ValueError, match=f"--host {host}: no address of this machine"):
            app._refuse_address(host, None)


def test_a_port_that_is_taken_is_named_with_the_option():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"--port {port}: cannot be had \(Address already"):
            app._refuse_address("127.0.0.1", port)
    app._refuse_address("127.0.0.1", port)
    app._refuse_address("localhost", None)


def test_examples_are_drawn_for_scenes_and_none_for_bare_weights(models):
    pytest.importorskip("gradio", reason="the page needs the extra app")
    found = app._examples(str(models / "demo/gmm"))
    assert [each.name for each in found] == ["unknown things"] * 3 + ["known things"] * 3
    assert {tuple(each.image.shape) for each in found} == {(3, 96, 160)}
    gmmseg.build("tiny_unet", num_classes=2, head="softmax").save_pretrained(models / "bare")
    assert app._examples(str(models / "bare")) == []


def test_a_machine_without_gradio_is_told_what_to_install(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "gmmseg.report.live", raising=False)
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install 'gmmseg\[app\]'"),
        app.live_page([], demo=models / "demo"),
    ):
        pass


class AtOnce(threading.Event):
    """The user's Ctrl-C, as soon as the page is there."""

    def wait(self, timeout=None):
        return True


def test_the_commands_of_the_page_in_the_docs_work_as_printed(models, monkeypatch):
    pytest.importorskip("gradio", reason="the page needs the extra app")
    page = (ROOT / "docs" / "app.md").read_text(encoding="utf-8")
    assert re.findall(r"```(\w*)\n", page)[::2] == ["bash", "python", "python"]
    lines = [
        shlex.split(line, comments=True)
        for line in re.search(r"```bash\n(.*?)```", page, re.S)[1].splitlines()
    ]
    assert lines[:2] == [["pip", "install", "gmmseg[app]"], ["make", "demo"]]
    assert len(lines) == 5
    assert "app" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.search("^demo:", (ROOT / "Makefile").read_text(), re.M)
    for name, source in {"mine": "gmm", "twin": "softmax"}.items():
        shutil.copytree(models / "demo" / source, models / "runs" / name)
    monkeypatch.chdir(models)
    # The name in this module alone: the threads of the page itself need true events.
    monkeypatch.setattr(cli_app, "threading", SimpleNamespace(Event=AtOnce))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        said = [CliRunner().invoke(cli.app, words[1:], catch_exceptions=False).output for words in lines[2:]]
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert all("page: http://127.0.0.1:" in output for output in said)


def test_the_command_serves_until_it_is_stopped_and_leaves_nothing(models):
    """`gmmseg app` as the docs print it, after a demo."""
    pytest.importorskip("gradio", reason="the page needs the extra app")
    (models / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gmmseg.cli", "app"],
        cwd=models,
        env={**os.environ, "TMPDIR": str(models / "tmp")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("page: http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[1], timeout=30) as reply:
            assert b"gradio" in reply.read()
        assert len(list((models / "tmp").glob("gmmseg_app_*"))) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
    assert list((models / "tmp").glob("gmmseg_app_*")) == []
    assert sorted(path.name for path in models.iterdir()) == ["demo", "tmp"]
