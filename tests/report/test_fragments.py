"""Pieces of the live page."""

import re

from gmmseg.inference.pixel_evidence import PixelEvidence
from gmmseg.report import fragments

FOUND = PixelEvidence(True, (1.0, 5.0, 3.0), (0.1, 0.7, 0.2), 1, 2, 5)
CLICKED = fragments.ClickedPixel(
    "<b>m", ("road", "<script>", "sky"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)), FOUND, 2, 4.5, 0.031, True
)


def test_bars_are_sorted_by_evidence_and_names_are_text():
    html = fragments.pixel_bars(3, 4, [CLICKED])
    assert re.findall(r'<td title="([^"]*)"', html) == ["&lt;script&gt;", "sky", "road"]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", html)]
    assert widths == [100.0, 52.0, 4.0]
    for words in ("Pixel 3,4", "p-value 0.031", "nearest component: 3 of 5", "sky, unknown", "&lt;b&gt;m"):
        assert words in html
    assert "<script>" not in html


def test_a_softmax_model_shows_logits_and_no_component():
    plain = PixelEvidence(False, (1.0, 5.0, 3.0), (0.1, 0.7, 0.2), 1, None, None)
    html = fragments.pixel_bars(
        0, 0, [fragments.ClickedPixel("m", CLICKED.names, CLICKED.colours, plain, 1, 1.0, None, False)]
    )
    assert "logit (softmax head" in html
    assert "not calibrated" in html
    assert "component" not in html


def test_messages_and_names_cannot_act_on_the_page():
    for html in (
        fragments.alert("<img src=x onerror=y>.png: no"),
        fragments.legend(["<img src=x onerror=y>"], ((1, 2, 3),)),
        fragments.promise_line("<img src=x onerror=y>", None, "<img src=x onerror=y>", 0.5),
    ):
        assert "<img" not in html
