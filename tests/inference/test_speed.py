"""Contenders take turns, are started anew, and the slower one has the lower ratio."""

from functools import cache

import pytest
import torch

from gmmseg.inference import speed
from gmmseg.inference.speed import LEAST_ROUNDS, STARTS, Contender, race, ratio


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(speed, "BREATH", 0.0)


class Clock:
    """A clock that passes move by themselves."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for name in ("perf_counter", "process_time"):
            monkeypatch.setattr(speed.time, name, lambda: self.now)


def test_every_start_is_a_new_one_for_files_and_turns_alternate(monkeypatch):
    clock, said = Clock(monkeypatch), []

    def contender(name, seconds, keep):
        def start():
            said.append(f"start {name}")

            def run(images):
                said.append(name)
                clock.now += seconds

            return run

        return Contender(name, "onnx", cache(start) if keep else start, None)

    slow, quick = race(
        [contender("slow", 3.0, False), contender("quick", 1.0, True)], torch.zeros(1), seconds=0.0
    )
    assert said.count("start slow") == STARTS
    assert said.count("start quick") == 1
    assert len(slow.clock) == len(quick.clock) == STARTS * LEAST_ROUNDS
    assert ratio(slow.clock, quick.clock) == pytest.approx(1 / 3)
    starts = [each for each in said if each.startswith("start")]
    assert starts == ["start quick", *["start slow"] * STARTS], "one start of what stays, the others anew"
    turns = [each for each in said if "start" not in each]
    assert turns[: 2 + 4] == ["slow", "quick", "quick", "slow", "slow", "quick"], "a first pass, then rounds"
    said.clear()
    race([contender("a", 1.0, False), contender("b", 1.0, False)], torch.zeros(1), seconds=0.0)
    starts = [each.removeprefix("start ") for each in said if each.startswith("start")]
    assert starts == ["b", "a", "a", "b"] * (STARTS // 2)
    longer, _ = race([contender("a", 1.0, False), contender("b", 1.0, False)], torch.zeros(1), seconds=80.0)
    assert len(longer.clock) == 40, "eighty seconds, two a round"
