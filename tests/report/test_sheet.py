import io

import pytest
from PIL import Image

from gmmseg.report.parts import Figure, Gallery
from gmmseg.report.sheet import contact_sheet


def square(colour: str) -> Figure:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 32), colour).save(buffer, "png")
    return Figure(buffer.getvalue(), "png", f"a {colour} square", colour)


def test_pictures_lie_in_rows_above_their_captions():
    galleries = [Gallery("one", (square("red"), square("blue"), square("lime")), columns=2)]
    sheet = Image.open(io.BytesIO(contact_sheet(galleries))).convert("RGB")
    assert sheet.width == 2 * 320 + 3 * 8
    assert sheet.height == 2 * (160 + 20) + 3 * 8
    centres = {"red": (168, 88), "blue": (496, 88), "lime": (168, 276)}
    for colour, (x, y) in centres.items():
        expected = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
        assert max(abs(a - b) for a, b in zip(sheet.getpixel((x, y)), expected)) < 12, colour
    strip = sheet.crop((8, 170, 328, 188)).convert("L")
    assert strip.getextrema()[0] < 100, "the caption is written in dark ink"


def test_nothing_to_show_is_refused():
    with pytest.raises(ValueError, match="at least one picture"):
        contact_sheet([])
