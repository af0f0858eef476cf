"""Streams of made-up statistics: few false alarms, changes noticed and told apart, state that goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom

from gmmseg.inference import Monitor
from gmmseg.inference.image_statistics import bin_of, level_of
from gmmseg.inference.monitor_state import read_state, write_state
from gmmseg.inference.watching import NoStatistics
from gmmseg.models.reference_images import CONDITIONS, OBJECTS, STORED_AS, ReferenceCounts


@pytest.fixture
def calibrated(calibration):
    """A calibration with the statistics of made-up images (n 2)."""

    def counts(values):
        numbers, found = np.unique([bin_of(value) for value in values], return_counts=True)
        return ReferenceCounts(tuple(level_of(int(each)) for each in numbers), tuple(found.tolist()))

    def make(values):
        return replace(
            calibration(3.0),
            image_statistics={
                STORED_AS[kind]: counts(values[:, column])
                for column, kind in enumerate((OBJECTS, CONDITIONS))
            },
        )

    return make


def shown(monitor, values):
    for index, (objects, conditions) in enumerate(values):
        yield monitor.update_statistics(f"{index}.png", {OBJECTS: objects, CONDITIONS: conditions})


def test_normal_streams_raise_few_alarms(calibrated):
    rng = np.random.default_rng(0)
    alarms = 0
    for stream in range(30):
        values = rng.gamma(3.0, size=(30 + 50, 2))
        monitor = Monitor(calibrated(values[:30]), false_alarms=0.1, seed=stream)
        list(shown(monitor, values[30:]))
        alarms += bool(monitor.alarms)
    assert alarms <= binom.ppf(0.999, 30, 0.1)


@pytest.mark.parametrize(
    ("shift", "kind"), [((6, 0), OBJECTS), ((0, 6), CONDITIONS), ((0, -6), CONDITIONS)], ids=str
)
def test_a_change_is_noticed_soon_and_named(calibrated, shift, kind):
    values = np.random.default_rng(1).normal(10, 1, size=(200, 2))
    monitor = Monitor(calibrated(values[:100]))
    list(shown(monitor, values[100:150]))
    assert monitor.alarms == ()
    seen = list(shown(monitor, values[150:170] + shift))
    (alarm,) = monitor.alarms
    assert alarm.kind == kind
    assert 50 < alarm.index < 62
    assert alarm.wealth >= monitor.limit == 200
    assert [each.alarms for each in seen if each.alarms] == [(alarm,)]
    # The strangest images are those after the change, the strangest first.
    strangest = monitor.strangest()[kind]
    assert len(strangest) == 5
    assert all(each.index >= 50 for each in strangest)
    assert [each.distance for each in strangest] == sorted(
        (each.distance for each in strangest), reverse=True
    )


def test_fewer_strange_things_are_no_alarm(calibrated):
    values = np.random.default_rng(1).normal(10, 1, size=(160, 2))
    monitor = Monitor(calibrated(values[:100]))
    list(shown(monitor, values[100:] - (6, 0)))
    assert monitor.alarms == ()


def test_a_monitor_goes_on_as_if_it_had_never_stopped(calibrated, tmp_path):
    values = np.random.default_rng(2).normal(10, 1, size=(160, 2))
    values[120:] += (0, 4)
    found = calibrated(values[:80])
    whole = Monitor(found, false_alarms=0.05)
    expected = list(shown(whole, values[80:]))
    assert whole.alarms
    first = Monitor(found, false_alarms=0.05)
    begun = list(shown(first, values[80:110]))
    write_state(first.state(), tmp_path / "state.json")
    second = Monitor(found, false_alarms=0.05)
    second.restore(read_state(tmp_path / "state.json"))
    rest = list(shown(second, values[110:]))
    assert [each.wealth for each in [*begun, *rest]] == [each.wealth for each in expected]
    renamed = [(each.index - 30 if each.index >= 30 else each.index) for each in expected]
    assert [int(each.name.split(".")[0]) for each in [*begun, *rest]] == renamed
    assert [each.index for each in second.alarms] == [each.index for each in whole.alarms]
    assert second.state().watches[OBJECTS].counts == whole.state().watches[OBJECTS].counts


def test_a_fresh_state_is_a_state(calibrated, tmp_path):
    found = calibrated(np.random.default_rng(0).normal(size=(20, 2)))
    write_state(Monitor(found).state(), tmp_path / "state.json")
    monitor = Monitor(found)
    monitor.restore(read_state(tmp_path / "state.json"))
    assert monitor.wealth() == Monitor(found).wealth() == pytest.approx({OBJECTS: 1, CONDITIONS: 1})


def test_states_that_do_not_belong_are_refused(calibrated, tmp_path):
    rng = np.random.default_rng(0)
    found, other = (calibrated(rng.normal(size=(20, 2))) for _ in range(2))
    state = Monitor(found).state()
    with pytest.raises(ValueError, match="another calibration"):
        Monitor(other).restore(state)
    with pytest.raises(ValueError, match="another calibration"):
        Monitor(replace(found, weights="x")).restore(state)
    with pytest.raises(ValueError, match=r"promise of 0\.01 false alarms, not 0\.1"):
        Monitor(found, false_alarms=0.1).restore(state)
    path = tmp_path / "state.json"
    assert read_state(path) is None
    write_state(state, path)
    tree = json.loads(path.read_text())
    for key, value, words in (
        ("images", -1, "images must be at least 0"),
        ("images", 7, "do not belong together"),
        ("format", 9, "format 9"),
        ("library", "x", "not the state of a gmmseg monitor"),
        ("watches", [], "must be an object"),
        ("watches", {OBJECTS: 1}, "does not hold"),
        ("alarms", 3, "must be a list"),
    ):
        path.write_text(json.dumps({**tree, key: value}))
        with pytest.raises(ValueError, match=words):
            Monitor(found).restore(read_state(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"state\.json: not valid JSON"):
        read_state(path)


def test_a_calibration_without_statistics_is_refused_with_the_command(calibration):
    for each in (None, calibration(3.0)):
        with pytest.raises(NoStatistics, match="gmmseg calibrate RUN --data"):
            Monitor(each)


def test_maps_become_statistics(calibrated):
    found = calibrated(np.random.default_rng(0).normal(size=(20, 2)))
    seen = Monitor(found).update("a", torch.linspace(0, 1, 101)[None])
    assert seen.statistics[CONDITIONS] == pytest.approx(0.75)
    assert seen.statistics[OBJECTS] == pytest.approx(0.24)
    assert set(seen.p_values) == {OBJECTS, CONDITIONS}
