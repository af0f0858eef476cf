import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gmmseg.report import plots

SVG = "{http://www.w3.org/2000/svg}"
CURVE = {
    "fpr": [0.0, 0.1, 1.0],
    "tpr": [0.5, 0.9, 1.0],
    "precision": [1.0, 0.6, 0.1],
    "auroc": 0.93,
    "ap": 0.7,
}


def texts(figure) -> list[str]:
    """All texts of an SVG, which must be well-formed."""
    root = ElementTree.fromstring(figure.data)
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def test_reliability_states_the_calibration_error():
    table = {"confidence": [0.2, np.nan, 0.9], "accuracy": [0.4, np.nan, 0.8], "count": [100, 0, 300]}
    figure = plots.reliability_diagram({"GMM": table})
    error = 0.25 * 0.2 + 0.75 * 0.1
    assert f"GMM {error:.1%}" in figure.alt
    assert f"GMM, ECE {error:.1%}" in texts(figure)
    assert "perfectly calibrated" in texts(figure)


@pytest.mark.parametrize(
    ("draw", "legend"), [(plots.roc_curves, "GMM (93.0)"), (plots.pr_curves, "GMM (70.0)")]
)
def test_curves_are_labelled_with_their_areas(draw, legend):
    figure = draw({"GMM": CURVE, "without <numbers> & more": {**CURVE, "auroc": 0.5, "ap": 0.1}})
    assert legend in texts(figure)
    assert any(text.startswith("without <numbers> & more") for text in texts(figure))
    assert "GMM" in figure.alt


def test_no_two_curves_of_a_chart_look_alike():
    for dots in (False, True):
        looks = [plots._series(index, dots=dots) for index in range(2000)]
        seen = {(look["color"], str(look["linestyle"]), look["marker"], look["markersize"]) for look in looks}
        assert len(seen) == 2000
    first = [plots._series(index) for index in range(8)]
    assert len({look["color"] for look in first}) == len({str(look["linestyle"]) for look in first}) == 8


def test_many_lines_make_a_taller_figure_and_not_a_flatter_chart():
    def height(count: int) -> float:
        drawn = plots.roc_curves({f"a model with a long name {number}": CURVE for number in range(count)})
        return float(re.search(rb'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn.data)[1])

    assert height(20) > height(2) + 18 * 12


def test_charts_of_one_point_or_none_are_left_out():
    point = {"fpr": [0.1], "tpr": [0.5], "precision": [0.5]}
    assert plots.roc_curves({"a": point}) is plots.pr_curves({}) is None
    assert "constant" not in plots.roc_curves({"a": CURVE, "constant": point}).alt
    assert plots.training_curve({"a": [{"step": 1, "loss": 1.0}], "b": []}, "loss") is None
    one_bin = {"confidence": [0.2, 0.9], "accuracy": [0.4, 0.8], "count": [0, 3]}
    assert plots.reliability_diagram({"a": one_bin}) is None


def test_a_histogram_names_both_kinds_and_the_threshold():
    histogram = {"edges": [-10.0, 0.0, 5.0], "known": [90, 10], "unknown": [0, 0]}
    figure = plots.score_histogram("x", histogram, 1.0)
    assert {"known pixels", "unknown pixels", "threshold 1"} <= set(texts(figure))
    assert "threshold, 1" in figure.alt
    assert not any("threshold" in text for text in texts(plots.score_histogram("x", histogram)))


def test_long_logs_are_averaged_and_gaps_passed_over():
    records = [{"step": i, "loss": float(i % 2)} for i in range(3000)] + [{"epoch": 1}]
    steps, values = plots._logged(records, "loss", "step")
    assert len(steps) == 300
    np.testing.assert_allclose(values, 0.5)
    assert steps.mean() == pytest.approx(1499.5)
    assert [len(part) for part in plots._logged([{"epoch": 1}], "loss", "step")] == [0, 0]
    assert {"a", "b"} <= set(
        texts(plots.training_curve({"a": records, "b": []} | {"b": records[:9]}, "loss"))
    )


def test_em_diagnostics_are_drawn_where_there_are_any():
    steps = [{"step": step, "occupancy": 0.5, "loss": 1.0} for step in (1, 2)]
    runs = {"GMM": [*steps, {"step": 3, "starved": 1}], "softmax": [{"step": 1, "loss": 2.0}]}
    figures = plots.em_diagnostics(runs)
    assert [figure.caption for figure in figures] == [plots.EM_DIAGNOSTICS["occupancy"]]
    assert plots.em_diagnostics({"softmax": runs["softmax"]}) == ()


def test_a_projection_shows_the_classes_asked_for():
    random = np.random.default_rng(0)
    points, labels = random.normal(size=(300, 6)), random.integers(0, 3, 300)
    means, variances = random.normal(size=(3, 2, 6)), np.ones((3, 2, 6))
    names, colours = ("road", "sky", "car"), ((128, 64, 128), (1, 2, 3), (0, 0, 142))
    figure = plots.projection(points, labels, means, variances, names, colours, classes=[2, 0])
    assert b"#804080" in figure.data
    assert b"#00008e" in figure.data
    assert b"#010203" not in figure.data
    assert {"road", "car"} <= set(texts(figure))
    assert "sky" not in texts(figure)
    assert b"data:image/png;base64" in figure.data, "thousands of points are one bitmap"


def test_charts_follow_the_theme_and_fetch_nothing():
    data = plots.roc_curves({"GMM": CURVE}).data.decode()
    assert "currentColor" in data
    assert plots._INK not in data
    assert not re.search(r'href="(?!#|data:)', data)
    assert "@import" not in data


def test_the_same_numbers_give_the_same_bytes_and_other_figures_other_identifiers():
    first, again, other = (
        plots.roc_curves({"a": CURVE}),
        plots.roc_curves({"a": CURVE}),
        plots.pr_curves({"a": CURVE}),
    )
    assert first == again
    clips = [set(re.findall(r'clipPath id="([^"]+)"', figure.data.decode())) for figure in (first, other)]
    assert clips[0]
    assert not clips[0] & clips[1]


def test_matplotlib_is_loaded_only_to_draw():
    code = "import sys, gmmseg.report.plots, gmmseg.report.html; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
