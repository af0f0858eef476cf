"""Memory that a process has freed, kept for its next step.

On a CPU every step of training or prediction takes large tensors from the C library and gives them back.
glibc hands such blocks on to the system, which clears each page again when it is next asked for. Kept by the
process they cost nothing, and its peak stays about what it was.
"""

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_MOST, _MOST_OF_OLDER_VERSIONS = (1 << 31) - 1, 1 << 25
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Ask the allocator of this process to keep what is freed; whether it does.

    Commands ask it. The library never does by itself, since it concerns the whole process: call it once at
    the start of a program of yours that trains or predicts on a CPU. The allocator is left alone where it is
    not glibc's, and where the environment says how it is to behave.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _CHOSEN_BY_USER):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    kept = mallopt(_MMAP_THRESHOLD, _MOST) == 1 or mallopt(_MMAP_THRESHOLD, _MOST_OF_OLDER_VERSIONS) == 1
    return mallopt(_TRIM_THRESHOLD, _MOST) == 1 and kept
