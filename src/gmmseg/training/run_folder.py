"""A run folder: one writer at a time, work that is not overwritten, leftovers of a killed run."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gmmseg.atomic import LEFTOVER_PREFIX
from gmmseg.distributed import any_process, rank
from gmmseg.training.checkpoint import list_checkpoints

LOCK_FILE = ".lock"
PARTS = ("checkpoints", "best", "final")


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
    weights = [part for part in ("best", "final") if any((folder / part).glob("*"))]
    if weights:
        raise WorkInFolder(
            f"{folder} holds trained weights ({', '.join(weights)}) and no checkpoint to go on from: "
            "choose another --out, or move them away"
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
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        _remove_stale(path)
        return _create_lock(path)
    with os.fdopen(handle, "w") as file:
        json.dump(_this_process(), file)
    return None


def _remove_stale(path: Path) -> None:
    """Remove the lock of a process that is gone; FolderInUse where it may still be running."""
    owner = _read_owner(path)
    if owner is not None:
        _refuse_living(owner, path)
    aside = path.with_name(f"{path.name}_{os.getpid()}")
    try:
        os.rename(path, aside)  # of several who try, one succeeds
    except FileNotFoundError:
        return
    if _read_owner(aside) != owner:  # somebody else took the stale lock over in between
        os.rename(aside, path)
        raise FolderInUse(f"{path.parent}: another process has just started writing here")
    aside.unlink()


def _refuse_living(owner: dict[str, Any], path: Path) -> None:
    who = f"process {owner.get('pid')} on {owner.get('host')}"
    if owner.get("host") != socket.gethostname():
        raise FolderInUse(f"{path.parent}: {who} is writing here; if it no longer runs, delete {path}")
    if _is_running(owner):
        raise FolderInUse(f"{path.parent}: {who} is writing here; wait for it, or choose another --out")


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _start_of(os.getpid())}


def _read_owner(path: Path) -> dict[str, Any] | None:
    """Who holds the lock; None when that was never written, after a moment for a process just writing it."""
    for _ in range(5):
        try:
            owner = json.loads(path.read_text())
            return owner if isinstance(owner, dict) else None
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.05)
    return None


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
    for stale in folder.glob(f"{LOCK_FILE}_*"):
        stale.unlink(missing_ok=True)
    for place in (folder, *(folder / part for part in PARTS)):
        for leftover in place.glob(f"{LEFTOVER_PREFIX}*"):
            leftover.unlink(missing_ok=True)
    for part in ("best", "final"):  # where earlier versions wrote weights in folders of tempfile's names
        for leftover in (folder / part).glob("tmp????????"):
            shutil.rmtree(leftover, ignore_errors=True)
