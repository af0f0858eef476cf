"""The page about a pixel: self-contained, names escaped, and honest about what a model does not have."""

import dataclasses
import io
import re

import numpy as np
import pytest
from PIL import Image

from gmmseg.inference import Explanation
from gmmseg.models.exemplars import Exemplar
from gmmseg.report.explained import explanation_page, verdict


def jpeg():
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "jpeg")
    return buffer.getvalue()


@pytest.fixture
def explained():
    return Explanation(
        x=4, y=9, names=("road", "<b>sky</b>", "car"), generative=True, evidence=(-20.5, -3.25, -80.0),
        posterior=(0.2, 0.79, 0.01), label=1, nearest=1, component=1, component_shares=(0.1, 0.9),
        anomaly=3.25, threshold=2.0, unknown=True, p_value=0.01,
        exemplars=(Exemplar(1, 1, "street<1>.png", 7, 8, 2.5, jpeg()),),
    )  # fmt: skip


def page(explained):
    pixels = np.zeros((40, 60, 3), np.uint8)
    return explanation_page(explained, pixels, "photo & co.jpg").html()


def test_everything_is_on_the_page_and_nothing_is_fetched(explained):
    text = page(explained)
    for words in (
        "photo &amp; co.jpg",
        "-20.50",
        "79.0",
        "component 2 of",
        "street&lt;1&gt;.png",
        "2.5 standard",
    ):
        assert words in text
    assert "<b>sky" not in text
    assert "http:" not in text.replace("http://www.w3.org", "")
    assert "https:" not in text
    assert text.count("<script") == text.count("script-src 'sha256-") == 1, "its own script, and no other"
    assert len(re.findall("data:image/jpeg;base64", text)) == 3


def test_a_softmax_model_has_logits_and_no_components(explained):
    softmax = dataclasses.replace(
        explained, generative=False, component=None, component_shares=(), exemplars=(), p_value=None
    )
    text = page(softmax)
    assert "It has no densities and no components" in text
    assert "no training pixels to show" in text


def test_a_missing_index_is_named_with_its_cure(explained):
    assert "gmmseg explain MODEL --build" in page(dataclasses.replace(explained, exemplars=()))


def test_how_strange_it_is_in_words(explained):
    assert verdict(explained) == "unknown; at most 1 % of known pixels are as strange"
    known = dataclasses.replace(explained, unknown=False, p_value=None)
    assert verdict(known) == "known, the threshold is 2.00"
    assert "calibrate" in verdict(dataclasses.replace(explained, threshold=None, unknown=None))
