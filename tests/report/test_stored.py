import json

import numpy as np

from gmmseg.report.stored import histogram_from_curve, read_log


def test_records_come_back_and_a_cut_off_last_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("inf")}]
    path.write_text("\n".join(map(json.dumps, records)) + '\n\n{"step": 3, "lo')
    assert read_log(path) == records


def test_a_line_cut_off_before_the_run_was_continued_is_left_out_wherever_it_stands(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo\n[3]\n"x"\n\xff\xfe\n{"kind": "train"}\n{"step": 4}\n')
    assert read_log(path) == [{"step": 1}, {"step": 4}]


def curve_of(known: np.ndarray, unknown: np.ndarray) -> dict:
    thresholds = np.unique(np.r_[known, unknown])[::-1]
    at_or_above = {
        name: (values[:, None] >= thresholds).mean(0) for name, values in (("fpr", known), ("tpr", unknown))
    }
    return {"thresholds": thresholds.tolist(), **at_or_above}


def test_the_histogram_of_a_curve_is_that_of_the_scores():
    random = np.random.default_rng(0)
    known, unknown = random.normal(-50, 5, 3000), random.normal(-30, 8, 1000)
    histogram = histogram_from_curve(curve_of(known, unknown), bins=20)
    for kind, scores in (("known", known), ("unknown", unknown)):
        expected = np.histogram(scores, histogram["edges"])[0] / len(scores)
        np.testing.assert_allclose(histogram[kind], expected, atol=2e-3)
        assert histogram[kind].sum() > 0.99


def test_infinite_thresholds_are_left_out_and_too_few_give_none():
    curve = {"thresholds": [np.inf, 3.0, 1.0], "fpr": [0.0, 0.2, 1.0], "tpr": [0.1, 0.9, 1.0]}
    histogram = histogram_from_curve(curve, bins=4)
    assert np.isfinite(histogram["edges"]).all()
    assert len(histogram["known"]) == 4
    assert histogram_from_curve({"thresholds": [1.0], "fpr": [1.0], "tpr": [1.0]}) is None
