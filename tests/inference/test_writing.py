import os

import pytest

from gmmseg.inference.writing import write_atomically


def test_files_are_replaced_whole_and_folders_made(tmp_path):
    path = tmp_path / "deep" / "down" / "file.bin"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file.bin"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.bin"]
