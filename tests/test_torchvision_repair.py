"""The repair on a healthy and a broken torchvision, each a stand-in package in a fresh interpreter."""

import subprocess
import sys

HEALTHY = "import sys\nsys.modules['torchvision'].runs = getattr(sys.modules['torchvision'], 'runs', 0) + 1\n"
BROKEN = HEALTHY + (
    "import torchvision.half\n"
    "import torch\n"
    "if not hasattr(torch.ops.torchvision, 'nms'):\n"
    "    raise RuntimeError('operator torchvision::nms does not exist')\n"
)


def import_with(tmp_path, source, code):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    (package / "half.py").write_text("")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import gmmseg; " + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


def test_a_healthy_import_is_left_alone(tmp_path):
    code = (
        "import torchvision, gmmseg.torchvision_repair as r; print(torchvision.runs, len(r._libraries), "
        "type(torchvision.__spec__.loader).__name__)"
    )
    result = import_with(tmp_path, HEALTHY, code)
    assert result.stdout.split()[:2] == ["1", "0"], result.stderr


def test_a_broken_import_is_cured_and_run_again(tmp_path):
    code = "import torch, torchvision; print(torchvision.runs, hasattr(torch.ops.torchvision, 'nms'))"
    result = import_with(tmp_path, BROKEN, code)
    assert result.stdout.split() == ["2", "True"], result.stderr


def test_any_other_failure_is_not_hidden(tmp_path):
    result = import_with(tmp_path, "raise RuntimeError('something else')\n", "import torchvision")
    assert result.returncode != 0
    assert "something else" in result.stderr


def test_the_installed_torchvision_imports():
    code = "import gmmseg; import torchvision; from torchvision.transforms import v2; print('ok')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "ok", result.stderr
