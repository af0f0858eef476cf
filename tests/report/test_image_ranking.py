from gmmseg.report.image_ranking import images_section, standouts
from gmmseg.report.subjects import Subject


def image(index: int, **figures: float) -> dict:
    return {"image": f"image {index}", "index": index, "strangeness": 2.5, **figures}


RANKED = {
    "worst": [image(4, wrong=0.5, miou=0.25), image(7, wrong=0.25, miou=0.5)],
    "strangest": [image(4, wrong=0.5, miou=0.25), image(9, wrong=0.0, miou=1.0)],
}


def test_images_are_listed_with_their_figures_in_percent():
    entry = {"task": "closed_set", "images_ranked": RANKED}
    odd = {
        "task": "anomaly",
        "images_ranked": {"worst": [image(1, wrong=0.5, missed=1.0, flagged_known=0.1)]},
    }
    section = images_section(
        [Subject("older", {"sets": {}}, [], ""), Subject("a", {"sets": {"val": entry, "odd": odd}}, [], "")]
    )
    worst, strangest, strange = section.tables
    assert worst.rows == (("image 4", 50.0, 25.0, 2.5), ("image 7", 25.0, 50.0, 2.5))
    assert strangest.rows[1][0] == "image 9"
    assert [column.name for column in strange.columns][2:4] == [
        "missed of the unknown %",
        "flagged of the known %",
    ]
    assert "`a`" in section.text
    assert images_section([Subject("older", None, [], "")]) is None


def test_an_image_that_stands_out_twice_is_chosen_once():
    chosen = standouts({"images_ranked": RANKED}, 1)
    assert chosen == {4: ("image 4", "most wrong pixels"), 9: ("image 9", "the strangest")}
