import os
import stat

import pytest

from gmmseg.atomic import write_atomically, write_bytes


def test_files_are_replaced_whole_and_folders_made(tmp_path):
    path = tmp_path / "deep" / "down" / "file.bin"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_others_may_read_what_they_usually_may(tmp_path):
    usual, ours = tmp_path / "usual", tmp_path / "ours"
    usual.write_bytes(b"x")
    write_bytes(ours, b"x")
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


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
