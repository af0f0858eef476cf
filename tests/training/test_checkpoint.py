import signal
import subprocess
import sys
import time

import pytest
import torch

from gmmseg.training.checkpoint import (
    CheckpointError,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)


def state(step):
    return {"step": step, "weights": torch.full((10,), float(step))}


def test_round_trip_and_only_the_newest_two_are_kept(tmp_path):
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, step, state(step))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_00000015.pt", "step_00000010.pt"]
    assert torch.equal(load_checkpoint(list_checkpoints(tmp_path)[0])["weights"], torch.full((10,), 15.0))


def test_a_truncated_checkpoint_is_refused_and_the_one_before_it_offered(tmp_path):
    for step in (5, 10):
        save_checkpoint(tmp_path / "checkpoints", step, state(step))
    newest = find_checkpoint(tmp_path)
    newest.write_bytes(newest.read_bytes()[:200])
    with pytest.raises(CheckpointError, match=r"step_00000010.pt: truncated .*--resume .*step_00000005.pt"):
        load_checkpoint(newest)


def test_foreign_files_are_refused(tmp_path):
    torch.save([1, 2], tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of a training run"):
        load_checkpoint(tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match="no checkpoints here"):
        find_checkpoint(tmp_path)


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path):
    path = tmp_path / "step_00000001.pt"
    path.write_bytes(b"cos\nsystem\n(S'echo pwned'\ntR.")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(path)


KILLED = """
import sys, torch
from pathlib import Path
from gmmseg.training.checkpoint import save_checkpoint
print("ready", flush=True)
step = int(sys.argv[2])
while True:
    step += 1
    save_checkpoint(Path(sys.argv[1]), step, {"step": step, "weights": torch.randn(500_000)})
"""


def test_a_run_killed_while_saving_never_leaves_an_unusable_folder(tmp_path):
    """SIGKILL at arbitrary moments of continuous saving, repeated; the newest file always loads."""
    for attempt in range(5):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(attempt * 10_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            time.sleep(0.15 + 0.037 * attempt)
            process.send_signal(signal.SIGKILL)
        newest = list_checkpoints(tmp_path)[0]
        assert load_checkpoint(newest)["step"] == int(newest.stem.split("_")[1])
    save_checkpoint(tmp_path, 10**7, state(10**7))
    assert not list(tmp_path.glob(".writing_*")), "leftovers are cleared by the next save"
