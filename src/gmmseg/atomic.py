"""Files that are either whole or not there."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

LEFTOVER_PREFIX = ".writing_"
"""How the temporary files begin; one that stays was left by a process killed while writing."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place in one step.

    Folders are made. Whoever looks sees the old file or the new one, also after a loss of power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=LEFTOVER_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """`write_atomically` for content that exists already."""
    write_atomically(path, lambda file: file.write(content))


def _umask() -> int:
    """What the user keeps from others; temporary files are made private and would stay so."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
