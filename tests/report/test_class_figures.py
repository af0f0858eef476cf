"""Classes one by one, with few and with many of them."""

import math

import numpy as np
import pytest

from gmmseg.report.class_figures import SHOWN_CLASSES, classes_section
from gmmseg.report.subjects import Subject


def subject(name: str, count: int, *, matrix: bool = True) -> Subject:
    """Class k is right in k of count + 1 pixels, and taken for the next one otherwise; the last is absent."""
    names = [f"class {index}" for index in range(count)]
    counts = np.zeros((count, count), int)
    for index in range(count - 1):
        counts[index, index] = 100 * index
        counts[index, index + 1] += 100 * (count + 1 - index)
    iou = [index / (count + 1) for index in range(count - 1)] + [math.nan]
    classes = {
        each: {"iou": value, "accuracy": value, "iou_interval": [value, value]}
        for each, value in zip(names, iou)
    }
    entry = {"task": "closed_set", "metrics": {"miou": 0.5}, "classes": classes}
    return Subject(
        name, {"sets": {"val": entry | ({"confusion": counts.tolist()} if matrix else {})}}, [], ""
    )


@pytest.mark.parametrize("count", [2, 8, 150])
def test_matrices_read_well_with_few_and_many_classes(count):
    section = classes_section([subject("a", count), subject("b", count)])
    matrix = section.matrices[0]
    shown = min(count, SHOWN_CLASSES)
    assert len(matrix.names) == len(matrix.shares) == shown
    assert bool(matrix.others) == (count > SHOWN_CLASSES)
    rows = np.array(matrix.shares)
    kept = ~np.isnan(rows[:, 0])
    np.testing.assert_allclose(rows[kept].sum(1), 1, err_msg="nothing is lost between the classes shown")
    own = [int(name.split()[1]) for name in matrix.names]
    for place, index in enumerate(own):
        if index < count - 1:
            assert rows[place, place] == pytest.approx(index / (count + 1))
    assert section.tables[0].rows[0][:3] == ("class 0", 0.0, 0.0), "the worst first"
    assert math.isnan(section.tables[0].rows[-1][1]), "the absent one last"
    assert len(section.tables[0].rows) == count


def test_the_most_frequent_mistakes_are_named_with_their_shares():
    section = classes_section([subject("a", 4)])
    mistakes = next(table for table in section.tables if "mistakes" in table.caption)
    assert mistakes.rows[0][0] == "class 0, taken for class 1"
    assert mistakes.rows[0][1:] == pytest.approx((100 * 5 / 12, 100.0))
    assert sum(row[1] for row in mistakes.rows) == pytest.approx(100)


def test_results_of_earlier_versions_have_a_table_and_no_matrix():
    section = classes_section([subject("a", 8, matrix=False)])
    assert len(section.tables) == 1
    assert section.matrices == ()
    assert "matrix" not in section.text
    assert classes_section([Subject("x", None, [], "")]) is None
    bare = {"sets": {"val": {"task": "closed_set", "metrics": {}}}}
    assert classes_section([Subject("x", bare, [], "")]) is None
