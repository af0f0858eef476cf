import os
import stat
import subprocess
import sys

import pytest

from gmmseg.atomic import write_atomically, write_bytes


def test_files_are_replaced_whole_and_folders_made(tmp_path):
    path = tmp_path / "deep" / "down" / "file.bin"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(OSError, match=f"there is a .* of this name; choose another: .*{name}"):
            write_bytes(tmp_path / name, b"x")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_others_may_read_what_they_usually_may(tmp_path):
    usual, ours = tmp_path / "usual", tmp_path / "ours"
    usual.write_bytes(b"x")
    write_bytes(ours, b"x")
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_what_others_may_is_not_changed_for_a_moment(tmp_path, monkeypatch):
    """Threads that write side by side would each restore what the other has set, and leave it open to all."""
    monkeypatch.setattr(os, "umask", pytest.fail)
    write_bytes(tmp_path / "deep" / "file.bin", b"x")
    assert (tmp_path / "deep" / "file.bin").read_bytes() == b"x"


@pytest.mark.parametrize("where", ["while writing", "while replacing"])
def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, where):
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    def write(file):
        file.write(b"half")
        if where == "while writing":
            fail()

    if where == "while replacing":
        monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, write)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.bin"]


FULL_DISK = """
import resource, signal
from pathlib import Path
import torch
from safetensors.torch import save_file
from gmmseg.atomic import naming, write_atomically

def save(path):
    with naming(path):
        save_file({{"x": torch.zeros(100_000)}}, path)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
path = Path({folder!r}) / "weights"
try:
    {write}
except OSError as error:
    print(error)
"""
WRITERS = {
    "bytes": "write_atomically(path, lambda file: file.write(bytes(100_000)))",
    "torch": "write_atomically(path, lambda file: torch.save({'x': torch.zeros(100_000)}, file))",
    "safetensors": "save(path)",
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_one_line_with_the_path(tmp_path, writer):
    """In a process of its own whose files may not grow, which fails like a full disk."""
    code = FULL_DISK.format(folder=str(tmp_path), write=WRITERS[writer])
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "weights" in ran.stdout, ran.stderr
    assert "File too large" in ran.stdout
    assert len(ran.stdout.splitlines()) == 1
    assert ran.returncode == 0
