"""Pieces of the live page."""

import dataclasses
import re

from gmmseg.inference import Explanation
from gmmseg.models.exemplars import Exemplar
from gmmseg.report import fragments

FOUND = Explanation(
    x=3, y=4, names=("road", "<script>", "sky"), generative=True, evidence=(1.0, 5.0, 3.0),
    posterior=(0.1, 0.2, 0.7), label=2, nearest=1, component=2, component_shares=(0.1, 0.1, 0.5, 0.2, 0.1),
    anomaly=4.5, threshold=9.0, unknown=False, p_value=0.031,
    exemplars=(Exemplar(2, 2, '"<i>.png', 7, 8, 2.5, b"\xff\xd8\xff"),),
)  # fmt: skip
COLOURS = ((1, 2, 3), (4, 5, 6), (7, 8, 9))


def test_bars_are_sorted_by_evidence_and_names_are_text():
    html = fragments.pixel_bars(3, 4, [fragments.ClickedPixel("<b>m", COLOURS, FOUND, unknown=True)])
    assert re.findall(r'<td title="([^"]*)"', html) == ["&lt;script&gt;", "sky", "road"]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", html)]
    assert widths == [100.0, 52.0, 4.0]
    for words in ("Pixel 3,4", "p-value 0.031", "component 3 of 5 of sky", "sky, unknown", "&lt;b&gt;m"):
        assert words in html
    assert "<script>" not in html


def test_training_pixels_are_shown_or_how_to_find_them():
    html = fragments.pixel_bars(3, 4, [fragments.ClickedPixel("m", COLOURS, FOUND, unknown=True)])
    assert 'src="data:image/jpeg;base64,/9j/"' in html
    assert 'alt="&quot;&lt;i&gt;.png, pixel 7,8"' in html
    bare = dataclasses.replace(FOUND, exemplars=())
    html = fragments.pixel_bars(3, 4, [fragments.ClickedPixel("m", COLOURS, bare, unknown=True)])
    assert "<img" not in html
    assert "gmmseg explain MODEL --build" in html


def test_a_softmax_model_shows_logits_and_no_component():
    plain = dataclasses.replace(
        FOUND, generative=False, component=None, component_shares=(), exemplars=(), p_value=None
    )
    html = fragments.pixel_bars(0, 0, [fragments.ClickedPixel("m", COLOURS, plain, unknown=False)])
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
