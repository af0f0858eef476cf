import subprocess
import sys

import pytest
import torch

from gmmseg.training.checkpoint import (
    CheckpointError,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    set_newer_aside,
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
    offered = rf"gmmseg train {tmp_path}/config.yaml --out {tmp_path} --resume-from \S*step_00000005.pt"
    with pytest.raises(CheckpointError, match=rf"step_00000010.pt: damaged, truncated .*{offered}$"):
        load_checkpoint(newest)
    find_checkpoint(tmp_path).with_name("step_00000005.pt").unlink()
    with pytest.raises(CheckpointError, match="there is none before it"):
        load_checkpoint(newest)


def test_a_bit_that_flipped_is_noticed_or_changes_nothing(tmp_path):
    """Values and structure are under a checksum; gaps between the records of the file are not."""
    path = save_checkpoint(tmp_path, 5, state(5))
    content, noticed = path.read_bytes(), 0
    values = content.index(torch.full((10,), 5.0).numpy().tobytes())
    for position in {*range(values, values + 40), *range(0, len(content), 23)}:
        path.write_bytes(content[:position] + bytes([content[position] ^ 8]) + content[position + 1 :])
        try:
            loaded = load_checkpoint(path)
        except CheckpointError:
            noticed += 1
            continue
        assert not values <= position < values + 40
        assert loaded["step"] == 5
        assert torch.equal(loaded["weights"], torch.full((10,), 5.0))
    assert noticed > 45


def test_foreign_files_are_refused(tmp_path):
    torch.save([1, 2], tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of a training run"):
        load_checkpoint(tmp_path / "step_00000001.pt")
    with pytest.raises(CheckpointError, match=r"absent\.pt: there is no such checkpoint"):
        load_checkpoint(find_checkpoint(tmp_path / "absent.pt"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", value) for value in ("x", 6.5, -3, True, None)),
        ("epoch", "x"),
        ("batches_done", "x"),
        *(("best", value) for value in ("x", None, float("nan"))),
        *(("about", value) for value in (5, [], {"name": torch.ones(2)}, {"classes": [torch.ones(2)]})),
        ("segmenter", None),
        ("optimizer", 5),
        ("em", "x"),
    ],
)
def test_a_part_of_another_kind_is_refused_with_the_file_and_the_part(tmp_path, name, value):
    good = {**state(5), "epoch": 0, "batches_done": 1, "best": float("-inf"), "em": None, "about": {"a": [1]}}
    path = save_checkpoint(tmp_path, 5, good)
    assert load_checkpoint(path)["about"] == {"a": [1]}
    torch.save({**good, name: value}, path)
    with pytest.raises(CheckpointError, match=f"^{path}: not what a training run writes under '{name}'; "):
        load_checkpoint(path)


def test_a_folder_without_checkpoints_has_none_to_find(tmp_path):
    save_checkpoint(tmp_path / "checkpoints", 3, state(3), label="diverged")
    assert find_checkpoint(tmp_path) is None
    assert find_checkpoint(tmp_path / "absent") is None


def test_checkpoints_beyond_the_step_a_run_goes_on_from_are_set_aside(tmp_path):
    for step in (5, 10):
        save_checkpoint(tmp_path, step, state(step))
    assert set_newer_aside(tmp_path, 10) == []
    (aside,) = set_newer_aside(tmp_path, 5)
    assert aside.name == "step_00000010.pt.unused"
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_00000005.pt"]


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path):
    path = tmp_path / "step_00000001.pt"
    path.write_bytes(b"cos\nsystem\n(S'echo pwned'\ntR.")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(path)


KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch
from gmmseg.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
folder = Path(sys.argv[1])
for attempt in range(15):
    child = os.fork()
    for step in range(attempt * 10_000, 10**8 if child == 0 else 0):
        save_checkpoint(folder, step, {"step": step, "weights": torch.randn(500_000)})
    while not folder.is_dir() or not list_checkpoints(folder):
        time.sleep(0.01)
    time.sleep(0.02 + 0.0037 * attempt)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    newest = list_checkpoints(folder)[0]
    assert load_checkpoint(newest)["step"] == int(newest.stem.split("_")[1])
print(len(list(folder.glob(".writing_*"))), "half-written files")
"""


def test_a_run_killed_while_saving_never_leaves_an_unusable_folder(tmp_path):
    """SIGKILL at arbitrary moments of continuous saving, repeated; the newest file always loads."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "checkpoints")]
    subprocess.run(command, check=True, timeout=120)
