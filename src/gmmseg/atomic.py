"""Files that are either whole or not there."""

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

LEFTOVER_PREFIX = ".writing_"
"""How the temporary files begin; one that stays was left by a process killed while writing."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place in one step.

    Folders are made. Whoever looks sees the old file or the new one, also after a loss of power.
    """
    with written(path) as file:
        write(file)


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """The same as a block: its file takes its place at the end, and is gone where the block fails."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as file:
            yield file


def refuse_odd_destination(path: Path) -> None:
    """OSError where something is at ``path`` that a new file must not replace: a folder, a device, a pipe."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise OSError(errno.EEXIST, f"there is {kind} of this name; choose another", str(path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system inside, such as a full disk, name ``path``, also those a library has wrapped."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except Exception as error:
        cause = _system_error(error)
        if cause is None:
            raise
        raise OSError(cause.errno, f"cannot be written: {cause.strerror}", str(path)) from error


def _system_error(error: BaseException | None) -> OSError | None:
    """The error of the system behind a library's own."""
    while error is not None and not isinstance(error, OSError):
        number = re.search(r"os error (\d+)", str(error))  # as libraries written in Rust report it
        if number:
            return OSError(int(number[1]), os.strerror(int(number[1])))
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _temporary(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path``, which has its place in the end.

    Made as any file is, so that others may read it where they usually may. To ask what they may is to change
    it for a moment, for all threads (os.umask).
    """
    refuse_odd_destination(path)
    temporary = path.with_name(LEFTOVER_PREFIX + secrets.token_hex(8))
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """`write_atomically` for content that exists already."""
    write_atomically(path, lambda file: file.write(content))
