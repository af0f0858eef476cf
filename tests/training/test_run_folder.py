"""One writer per run folder, whoever dies or is killed; nothing of value overwritten."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from gmmseg.training.run_folder import LOCK_FILE, FolderInUse, WorkInFolder, locked, refuse_work

HOLDER = """
import sys, time
from pathlib import Path
from gmmseg.training.run_folder import locked
with locked(Path(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(60)
"""


def hold_by_hand(folder, **changes):
    """A lock file as another process would have written it; this process's own unless changed."""
    folder.mkdir(exist_ok=True)
    with locked(folder):
        owner = json.loads((folder / LOCK_FILE).read_text())
    (folder / LOCK_FILE).write_text(json.dumps({**owner, **changes}))


def test_the_lock_is_held_inside_and_gone_afterwards_also_after_an_error(tmp_path):
    def fail():
        with locked(tmp_path / "run"):
            assert json.loads((tmp_path / "run" / LOCK_FILE).read_text())["pid"] == os.getpid()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not (tmp_path / "run").exists(), "what was made for it, and holds nothing, goes too"
    (tmp_path / "run").mkdir()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "run").iterdir()) == [], "a folder that was there stays"


def test_a_folder_another_process_writes_to_is_refused_until_that_process_is_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "holding\n"
        (tmp_path / ".writing_x").write_text("of the other one")
        with pytest.raises(FolderInUse, match=rf"process {other.pid} on .* choose another --out"):
            locked(tmp_path).__enter__()
        assert (tmp_path / ".writing_x").exists(), "what others are writing is left alone"
        other.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_a_number_given_to_a_new_process_does_not_keep_the_lock_of_the_old_one(tmp_path):
    hold_by_hand(tmp_path)
    with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
        locked(tmp_path).__enter__()
    hold_by_hand(tmp_path := tmp_path / "other", started="1")
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("pid", [0, -1, 10**20, True, "1", None, 1.0])
def test_a_number_no_process_can_have_holds_nothing(tmp_path, pid):
    hold_by_hand(tmp_path, pid=pid, started=None)
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_a_lock_of_another_machine_is_refused_with_the_file_to_delete(tmp_path):
    hold_by_hand(tmp_path, host=f"not-{socket.gethostname()}", pid=1)
    with pytest.raises(FolderInUse, match=rf"process 1 on not-.* delete {tmp_path}/{LOCK_FILE}"):
        locked(tmp_path).__enter__()


def test_a_lock_nobody_signed_was_left_by_a_kill(tmp_path):
    (tmp_path / LOCK_FILE).touch()
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def work_and_die(folder):
    """Take the lock, see that nobody else is at work, and leave as a killed process does."""
    while True:
        with suppress(FolderInUse), locked(folder):
            try:
                (folder / "at_work").touch(exist_ok=False)
            except FileExistsError:
                os._exit(1)
            time.sleep(0.002)
            (folder / "at_work").unlink()
            os._exit(0)


def test_of_many_who_find_the_lock_of_a_dead_process_one_at_a_time_works(tmp_path):
    """Each of them dies with the lock, so that the others race for it again."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work_and_die, args=(tmp_path,), daemon=True) for _ in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0] * 16


def test_what_a_killed_run_left_half_written_is_removed_and_nothing_else(tmp_path):
    litter = [
        ".writing_a",
        "checkpoints/.writing_b",
        "best/.writing_c",
        "best/tmpab12cd_9/model.safetensors",
    ]
    kept = [
        ".lock_77",
        "log.jsonl",
        "checkpoints/step_00000001.pt",
        "best/model.safetensors",
        "own/.writing_d",
    ]
    for name in litter + kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with locked(tmp_path):
        pass
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(kept)


def test_a_folder_with_checkpoints_or_weights_is_not_for_a_new_run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "diverged_00000003.pt").write_text("x")
    refuse_work(tmp_path)  # nothing to resume from, nothing to lose
    (tmp_path / "final").mkdir()
    refuse_work(tmp_path)
    (tmp_path / "final" / "model.safetensors").write_text("x")
    with pytest.raises(WorkInFolder, match=r"weights \(final\).*choose another --out"):
        refuse_work(tmp_path)
    (tmp_path / "checkpoints" / "step_00000003.pt").write_text("x")
    with pytest.raises(WorkInFolder, match="add --resume"):
        refuse_work(tmp_path)
