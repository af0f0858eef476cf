"""What the sections say, from made-up results."""

import numpy as np
import pytest

from gmmseg.report import panels, sections
from gmmseg.report.sections import Subject


def closed(miou):
    return {"task": "closed_set", "metrics": {"miou": miou, "pixel_accuracy": 0.9, "ece": 0.1}}


def anomaly(ap):
    curve = {"thresholds": [2.0, 1.0], "tpr": [0.5, 1.0], "fpr": [0.1, 1.0], "precision": [0.5, 0.1]}
    return {"task": "anomaly", "scores": {"msp": {"auroc": 0.8, "ap": ap, "fpr95": 0.5, "curve": curve}}}


def subject(name, log=(), config="", **sets):
    return Subject(
        name, {"name": name, "sets": sets, "versions": "torch 2"} if sets else None, [*log], config
    )


def test_highlights_are_the_subjects_own_and_compare_the_same_set():
    own = subject("own", val=closed(0.5))
    twin = subject("twin", other=closed(0.1), val=closed(0.6), strange=anomaly(0.9))
    found = sections.highlights([own, twin])
    assert [(each.label, each.value, each.note) for each in found[:1]] == [("mIoU", "50.0 %", "twin 60.0 %")]
    assert not any("AP" in each.label for each in found), "the twin's number is not the subject's"


def test_tables_hold_percentages_and_name_the_set_once_where_there_is_one():
    section = sections.results_section([subject("a", val=closed(0.5)), subject("b", val=closed(0.25))])
    (table,) = section.tables
    assert table.rows == (("a", 50.0, 90.0, 10.0), ("b", 25.0, 90.0, 10.0))
    assert table.caption == "Known classes: val"
    two = sections.results_section([subject("a", val=closed(0.5), test=closed(0.25), odd=anomaly(0.3))])
    assert two.tables[0].rows == (("a", "val", 50.0, 90.0, 10.0), ("a", "test", 25.0, 90.0, 10.0))
    assert two.tables[1].rows == (("a: msp", 80.0, 30.0, 50.0),)


def at_threshold(**more):
    words = "flags on average at most 5 % of the known pixels of a new image"
    return {"at_threshold": {"threshold": 3.0, "promise": words, "flagged_known": 0.04, **more}}


def test_what_thresholds_flag_and_promise_is_shown():
    one = subject(
        "a",
        val={**closed(0.5), **at_threshold(images_with_alarm=0.25)},
        odd={**anomaly(0.3), **at_threshold(recall=0.6)},
    )
    section = sections.results_section([one, subject("older", val=closed(0.5))])
    table = section.tables[-1]
    assert table.rows == (("a", "val", 4.0, 25.0, None), ("a", "odd", 4.0, None, 60.0))
    assert section.text.count("The threshold of `a` flags on average at most 5 %") == 1
    assert "`older`" not in section.text


def test_pictures_say_what_the_threshold_promises():
    grey = np.zeros((4, 4), np.float32)
    maps = panels.ModelMaps(grey.astype(np.uint8), grey, grey, 3.0, grey > 1)
    example = panels.Example("x", np.zeros((4, 4, 3), np.uint8), {"GMM": maps})
    classes = sections.Classes(("a",), ((1, 2, 3),))
    section = sections.pictures_section([example], classes, {"GMM": "flags nothing at all"})
    assert section.text.endswith("The threshold of `GMM` flags nothing at all.")


def test_pictures_of_a_model_without_a_threshold_speak_of_none():
    grey = np.zeros((4, 4), np.float32)
    maps = panels.ModelMaps(grey.astype(np.uint8), grey, grey)
    example = panels.Example("x", np.zeros((4, 4, 3), np.uint8), {"GMM": maps})
    section = sections.pictures_section([example], sections.Classes(("a",), ((1, 2, 3),)))
    assert "threshold" not in section.text


def test_the_histogram_of_the_score_that_is_shown_has_its_threshold():
    curve = anomaly(0.3)["scores"]["msp"]
    scores = {"msp": curve, "fused": {**curve, "ap": 0.2}}
    entry = {"task": "anomaly", "scores": scores, **at_threshold(score="fused")}
    section = sections.unknown_section([subject("a", odd=entry)])
    shown, best = section.figures[2:]
    assert (shown.caption, best.caption) == ("a: fused", "a: msp")
    assert "threshold, 3" in shown.alt
    assert "threshold" not in best.alt


def test_intervals_stand_beside_their_figures():
    sure = {**closed(0.5), "intervals": {"miou": [0.4, 0.6]}}
    section = sections.results_section([subject("a", val=sure), subject("older", val=closed(0.25))])
    assert section.tables[0].rows == (
        ("a", 50.0, "40.0 – 60.0", 90.0, 10.0),
        ("older", 25.0, None, 90.0, 10.0),
    )
    (miou, _) = sections.highlights([subject("a", val=sure), subject("older", val=closed(0.25))])
    assert miou.note == "95 %: 40.0 – 60.0, older 25.0 %"


def test_curves_and_histogram_are_of_the_first_anomaly_set():
    first = subject("a", val=closed(0.5), odd=anomaly(0.3), other=anomaly(0.9))
    section = sections.unknown_section([first, subject("b", other=anomaly(0.7))])
    assert "`odd`" in section.text
    assert len(section.figures) == 3, "ROC, precision and recall, one histogram: b was not judged on the set"


def test_training_shows_what_was_logged():
    log = [
        {"kind": "train", "step": 1, "posterior": 2.0, "em": {"occupancy": 0.5}},
        {"kind": "train", "step": 2, "posterior": 1.0, "em": {"occupancy": 0.7}},
    ]
    assert len(sections.training_section([subject("a", log)]).figures) == 2
    log += [{"kind": "validation", "step": step, "miou": 0.4} for step in (1, 2)]
    assert len(sections.training_section([subject("a", log), subject("b")]).figures) == 3


def test_settings_hold_every_configuration_and_the_versions():
    text = sections.settings_section(
        [subject("a", config="x: 1", val=closed(0.5)), subject("b", config="y: 2")]
    )
    assert text.details == "# a\nx: 1\n# b\ny: 2\n# versions\ntorch 2"


@pytest.mark.parametrize("name", ["results", "unknown", "training", "settings"])
def test_a_section_with_nothing_to_say_is_left_out(name):
    assert getattr(sections, f"{name}_section")([subject("a")]) is None
    assert sections.pictures_section([], sections.Classes((), ())) is None
    assert sections.calibration_section([subject("a")], []) is None
