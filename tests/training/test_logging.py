"""What a run writes while it runs."""

import builtins
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gmmseg.report.stored import read_log
from gmmseg.training.logging import RunLog


def test_every_entry_is_a_line(tmp_path):
    log = RunLog(tmp_path, 10, 0, tensorboard=False, active=True)
    log.entry(3, "train", {"loss": 0.5, "em": {"occupancy": 1.0}})
    log.entry(4, "validation", {"miou": 0.25})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["kind"]) for line in lines] == [(3, "train"), (4, "validation")]
    assert lines[0]["em"] == {"occupancy": 1.0}
    assert not (tmp_path / "tensorboard").exists()


def test_a_half_written_line_does_not_swallow_the_next(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "kind": "train"}\n{"step": 2, "ki')
    log = RunLog(tmp_path, 10, 2, tensorboard=False, active=True)
    log.entry(3, "train", {"loss": 0.5})
    log.close()
    assert [record["step"] for record in read_log(tmp_path / "log.jsonl")] == [1, 3]


def test_tensorboard_holds_the_same_numbers(tmp_path):
    log = RunLog(tmp_path, 10, 0, tensorboard=True, active=True)
    for step in (1, 2):
        log.entry(step, "train", {"loss": 0.5 * step})
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    (tag,) = [name for name in board.Tags()["scalars"] if "loss" in name]
    assert [(each.step, each.value) for each in board.Scalars(tag)] == [(1, 0.5), (2, 1.0)]


def test_without_tensorboard_the_message_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **more):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"gmmseg\[tensorboard\]"):
        RunLog(tmp_path, 1, 0, tensorboard=True, active=True)


def test_other_processes_are_silent(tmp_path):
    log = RunLog(tmp_path / "run", 1, 0, tensorboard=False, active=False)
    log.entry(1, "train", {"loss": 1.0})
    log.close()
    assert not (tmp_path / "run").exists()


def test_a_resumed_log_holds_each_step_once_and_no_line_cut_short(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"step": step, "kind": "train", "time": 0.0}) + "\n" for step in (1, 2, 3, 4)]
    path.write_text("".join(lines) + "not JSON\n" + '{"step": 2, "kin')
    log = RunLog(tmp_path, 10, 2, tensorboard=False, active=True)
    log.entry(3, "train", {})
    log.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr("gmmseg.training.logging.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("start", "steps", "seconds", "said"),
    [
        (0, 100, 2.0, "90 steps are left: about 3 min, and the validations"),
        (
            40,
            100,
            0.5,
            "50 steps are left: about 25 s, and the validations",
        ),  # resumed: from its own tenth step
        (0, 90_010, 1.0, "90000 steps are left: about 25.0 h, and the validations"),
        (0, 15, 1.0, None),
    ],
)
def test_the_tenth_step_says_how_long_the_others_take(tmp_path, capsys, clock, start, steps, seconds, said):
    log = RunLog(tmp_path, steps, start, tensorboard=False, active=True)
    clock[0] += 1000.0  # the first step waits for the loader, which says nothing about the others
    for _ in range(12):
        log.advance({})
        clock[0] += seconds
    log.close()
    assert capsys.readouterr().out.splitlines() == ([said] if said else [])


def test_what_is_said_once_is_said_once_and_by_one_process(tmp_path, capsys):
    for active in (True, False):
        log = RunLog(tmp_path, 3, 0, tensorboard=False, active=active)
        for _ in range(2):
            log.tell_once("key", "about\x1b[31m this")
            log.warn_once("other", "that")
        log.close()
    assert capsys.readouterr().out.splitlines() == ["about\\x1b[31m this", "warning: that"]
