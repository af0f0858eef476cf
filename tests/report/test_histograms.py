import numpy as np

from gmmseg.report.histograms import histogram_from_curve


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
