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

torch.set_num_threads(1)
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
layers = [torch.nn.Conv2d(width, 32, 3, padding=1) for width in (3, 32, 32, 32)]
network = torch.nn.Sequential(*layers)
for step in range(8):
    if step == 3:  # the first ones take the memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(torch.ones(2, 3, 200, 300)).sum().backward()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(word):
    """Whether memory is kept, and how many pages the system cleared for five training steps."""
    clean = {key: value for key, value in os.environ.items() if key not in allocator._CHOSEN_BY_USER}
    command = [sys.executable, "-c", FAULTS, word]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_steps_of_training_find_the_memory_of_the_step_before():
    kept, count = page_faults("keep")
    assert kept == "True"
    assert count < page_faults("leave")[1] / 10


@pytest.mark.parametrize("name", allocator._CHOSEN_BY_USER)
def test_what_the_environment_says_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert not allocator.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()
