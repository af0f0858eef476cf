"""A run folder: one writer at a time, work that is not overwritten, leftovers of a killed run."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from gmmseg.atomic import LEFTOVER_PREFIX
from gmmseg.distributed import any_process, rank
from gmmseg.models.saving import CONFIG_FILE, RUN_PARTS, WEIGHTS_FILE
from gmmseg.training.checkpoint import list_checkpoints

LOCK_FILE = ".lock"
PARTS = ("checkpoints", *RUN_PARTS, "crops")


class FolderInUse(RuntimeError):
    """Another process writes to the folder; the message says which one, and what to do."""


class WorkInFolder(ValueError):
    """The folder holds a run that a new one would overwrite."""


def refuse_work(folder: Path) -> None:
    """Raise WorkInFolder where a new run would overwrite checkpoints or weights of an earlier one."""
    if list_checkpoints(folder / "checkpoints"):
        raise WorkInFolder(
            f"{folder} holds a run already: add --resume to continue it, or choose another --out"
        )
    weights = [part for part in RUN_PARTS if any((folder / part).glob("*"))]
    if weights:
        raise WorkInFolder(
            f"{folder} holds trained weights ({', '.join(weights)}) and no checkpoint to go on from: "
            "choose another --out, or move them away"
        )


def refuse_weights(folder: Path) -> None:
    """Raise WorkInFolder where ``folder`` is a folder of weights, which others would replace."""
    found = [name for name in (WEIGHTS_FILE, CONFIG_FILE) if (folder / name).exists()]
    if found:
        raise WorkInFolder(
            f"{folder} holds weights already ({', '.join(found)}): choose another --out, or move them away"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which is made; FolderInUse when another living process has it.

    With several processes the main one takes it for all. What a killed run left half-written is removed:
    while the lock is held, nobody else can be writing it.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    refused = _take_lock(folder) if rank() == 0 else None
    if any_process(refused is not None):
        raise refused or FolderInUse(f"{folder}: the main process could not take its lock")
    try:
        yield
    finally:
        if rank() == 0 and _read_owner(folder / LOCK_FILE) == _this_process():
            (folder / LOCK_FILE).unlink(missing_ok=True)
            _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, the innermost first, up to one that holds something: a refused run leaves none."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _take_lock(folder: Path) -> Exception | None:
    """Take the lock and clear leftovers; returns why that could not be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _create_lock(folder / LOCK_FILE)
        _clear_leftovers(folder)
    except (FolderInUse, OSError) as refused:
        return refused
    return None


def _create_lock(path: Path) -> None:
    """Write this process into the lock, new or of a process that is gone; FolderInUse if that may run.

    The file is looked at and signed in place, by one process at a time: moved or removed, it could be that
    of another one who was faster.
    """
    with _open_lock(path) as file:
        _hold_back_others(file)
        if not _is_still(file, path):  # its owner has left and removed it meanwhile
            return _create_lock(path)
        owner = _parse_owner(file.read())
        if owner is not None:
            _refuse_living(owner, path)
        file.seek(0)
        file.truncate()
        json.dump(_this_process(), file)
    return None


def _open_lock(path: Path) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o666), "r+", errors="replace")
    except PermissionError:
        owner = _read_owner(path)
        if owner is None:
            raise
        _refuse_living(owner, path)
        left = "a run of another user was killed here and its lock cannot be taken over"
        raise FolderInUse(f"{path.parent}: {left}; delete {path}") from None


def _hold_back_others(file: TextIO) -> None:
    """Wait until no other process looks at the lock; they wait until ``file`` is closed."""
    with suppress(ImportError, OSError):  # Windows, and file systems that do not offer it
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _is_still(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _refuse_living(owner: dict[str, Any], path: Path) -> None:
    who = f"process {owner.get('pid')} on {owner.get('host')}"
    if owner.get("host") != socket.gethostname():
        raise FolderInUse(f"{path.parent}: {who} is writing here; if it no longer runs, delete {path}")
    if _is_running(owner):
        raise FolderInUse(f"{path.parent}: {who} is writing here; wait for it, or choose another --out")


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _start_of(os.getpid())}


def _read_owner(path: Path) -> dict[str, Any] | None:
    """Who holds the lock; None without one that is signed and can be read."""
    try:
        return _parse_owner(path.read_text(errors="replace"))
    except OSError:
        return None


def _parse_owner(text: str) -> dict[str, Any] | None:
    """What a lock says; None when a process was killed before it had signed it."""
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return owner if isinstance(owner, dict) else None


def _is_running(owner: dict[str, Any]) -> bool:
    """Whether the process still runs, and is not another one that was given its number since."""
    pid = owner.get("pid")
    if type(pid) is not int or pid <= 0:  # to the system 0 and -1 stand for many processes
        return False
    if os.name == "nt":  # where one cannot ask without disturbing the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's, so it exists
    started = _start_of(pid)
    return started == owner.get("started") and started != "ended"


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; "ended" for a zombie; None if unknown here."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if numbers[0] == "Z" else numbers[19]


def _clear_leftovers(folder: Path) -> None:
    for place in (folder, *(folder / part for part in PARTS)):
        for leftover in place.glob(f"{LEFTOVER_PREFIX}*"):
            leftover.unlink(missing_ok=True)
    for part in RUN_PARTS:  # where earlier versions wrote weights in folders of tempfile's names
        for leftover in (folder / part).glob("tmp????????"):
            shutil.rmtree(leftover, ignore_errors=True)
