"""What a process frees stays with it, unless its user has said otherwise."""

import os
import platform
import subprocess
import sys

import pytest

from gmmseg import allocator

FAULTS = """
import resource, sys
import torch
from gmmseg.allocator import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
torch.set_num_threads(1)
for step in range(12):
    if step == 2:  # the first ones take the memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    one = torch.ones(10_000_000)
    two = one * 2
    del one
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 10 * 2 * 40_000_000 // 4096


def faults(word, **environment):
    clean = {key: value for key, value in os.environ.items() if key not in allocator._CHOSEN_BY_USER}
    command = [sys.executable, "-c", FAULTS, word]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_memory_is_not_cleared_again():
    """Ten times two tensors of 40 MB: left alone, each page of each is faulted in anew."""
    kept, count = faults("keep")
    assert kept == "True"
    assert count < PAGES / 20
    assert faults("leave")[1] > PAGES / 2, "or nothing is gained"


@pytest.mark.parametrize("name", allocator._CHOSEN_BY_USER)
def test_what_the_environment_says_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert not allocator.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()
