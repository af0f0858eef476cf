import csv
import io

import pytest

from gmmseg.report.tables import QUOTED, compare, paper_models, threshold_lines

TWIN = {
    "name": "soft_max",
    "sets": {
        "cityscapes": {"task": "closed_set", "metrics": {"miou": 0.75, "ece": 0.05}},
        "road_anomaly": {
            "task": "anomaly",
            "scores": {
                "msp": {"auroc": 0.7, "ap": 0.2, "fpr95": 0.6, "auroc_bound": 1e-6},
                "energy": {"auroc": 0.72, "ap": 0.25, "fpr95": float("nan")},
            },
        },
    },
}
GMM = {
    "name": "gmm",
    "sets": {
        "cityscapes": {"task": "closed_set", "metrics": {"miou": 0.76, "ece": 0.02}},
        "road_anomaly": {
            "task": "anomaly",
            "scores": {
                "nll": {
                    "auroc": 0.85,
                    "ap": 0.3456,
                    "fpr95": 0.5,
                    "intervals": {"ap": [0.3, 0.4]},
                    "components": {"f1_star": 0.3, "siou": 0.4, "ppv": 0.5, "threshold": 2.0},
                }
            },
        },
    },
}


def cells(markdown: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.strip().split("\n")]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_models_stand_side_by_side_and_the_best_is_bold() -> None:
    table = cells(compare([TWIN, GMM]).markdown())
    assert table["set", "metric"] == ["soft_max (msp)", "soft_max (energy)", "gmm"]
    assert table["cityscapes", "mIoU ↑"] == ["75.00", "-", "**76.00**"]
    assert table["cityscapes", "ECE ↓"] == ["5.00", "-", "**2.00**"]
    assert table["road_anomaly", "AP ↑"] == ["20.00", "25.00", "**34.56** [30.00, 40.00]"]
    assert table["road_anomaly", "FPR95 ↓"] == ["60.00", "-", "**50.00**"]
    assert table["road_anomaly", "F1* ↑"] == ["-", "-", "30.00"]
    assert not any("bound" in metric or "threshold" in metric for _, metric in table)


def test_the_papers_figures_are_marked_as_quoted_and_never_win() -> None:
    table = cells(compare([TWIN, GMM], paper=["GMMSeg-SegFormer"]).markdown())
    assert table["set", "metric"][-1] == f"GMMSeg-SegFormer ({QUOTED})"
    assert table["road_anomaly", "AP ↑"][2:] == ["**34.56** [30.00, 40.00]", "57.65"]
    assert table["cityscapes", "mIoU ↑"][-1] == "82.60"
    assert ("ade20k", "mIoU ↑") not in table
    with pytest.raises(ValueError, match=r"no figures of 'GMMSeg'; it has .*GMMSeg-DeepLabV3"):
        compare([GMM], paper=["GMMSeg"])


def test_the_papers_figures_meet_the_keys_that_evaluate_writes() -> None:
    keys = ("road_anomaly/test", "road_anomaly/test (window=512)", "cityscapes/val", "cityscapes/train")
    entries = [GMM["sets"]["road_anomaly"], GMM["sets"]["road_anomaly"], *[GMM["sets"]["cityscapes"]] * 2]
    table = cells(
        compare([{"name": "gmm", "sets": dict(zip(keys, entries))}], paper=["GMMSeg-SegFormer"]).markdown()
    )
    assert table["road_anomaly/test", "AP ↑"][-1] == "57.65"
    assert table["road_anomaly/test (window=512)", "AP ↑"][-1] == "57.65"
    assert table["cityscapes/val", "mIoU ↑"][-1] == "82.60"
    assert table["cityscapes/train", "mIoU ↑"][-1] == "-", "the paper has no figures of this split"


def test_csv_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(compare([TWIN, GMM], paper=["MSP"]).csv())))
    by_row = {(row["set"], row["metric"]): row for row in rows}
    assert float(by_row["road_anomaly", "ap"]["gmm"]) == pytest.approx(34.56)
    assert by_row["road_anomaly", "ap"][f"MSP ({QUOTED})"] == "20.59"
    assert by_row["cityscapes", "miou"]["soft_max (energy)"] == ""


def test_latex_is_escaped_and_has_as_many_cells_as_columns() -> None:
    latex = compare([TWIN, GMM], paper=["DeepLabV3+"]).latex()
    body = [line for line in latex.split("\n") if line.endswith(r"\\")]
    assert r"soft\_max (msp)" in latex
    assert r"road\_anomaly & AP $\uparrow$ & 20.00 & 25.00 & \textbf{34.56} [30.00, 40.00] & - \\" in body
    assert {line.count(" & ") for line in body} == {5}
    assert r"\begin{tabular}{llrrrr}" in latex


def test_every_model_of_the_paper_can_be_quoted() -> None:
    assert len(paper_models()) == 6 * 2 + 6
    assert len(compare([GMM], paper=paper_models()).columns) == 1 + 18


def test_a_line_says_what_a_threshold_flags_and_promises():
    found = {
        "threshold": 3.14159,
        "promise": "flags anything\x1b",
        "normal_images": 8,
        "flagged_known": 0.0123,
    }
    results = {
        "name": "a",
        "sets": {
            "camvid/val": {"at_threshold": {**found, "images_with_alarm": 0.25}},
            "odd/test": {"at_threshold": {**found, "recall": 0.5}},
            "older/val": {},
        },
    }
    first, second = threshold_lines(results)
    assert first.startswith(
        "camvid/val, above 3.142: 1.23 % of an image's known pixels flagged, an alarm in 25"
    )
    assert "25.0 % of 8 normal images (the threshold flags anything" in first
    assert "\x1b" not in first
    assert "50.0 % of the unknown pixels found" in second
