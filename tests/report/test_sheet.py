import io

import pytest
from PIL import Image

from gmmseg.report.parts import Figure, Gallery
from gmmseg.report.sections import Classes
from gmmseg.report.sheet import contact_sheet


def square(colour: str) -> Figure:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 32), colour).save(buffer, "png")
    return Figure(buffer.getvalue(), "png", f"a {colour} square", colour)


CLASSES = Classes(("road", "sky"), ((250, 200, 0), (0, 200, 250)))


def test_pictures_lie_in_rows_above_their_captions_and_a_legend():
    galleries = [Gallery("one", (square("red"), square("blue"), square("lime")), columns=2)]
    sheet = Image.open(io.BytesIO(contact_sheet(galleries, CLASSES))).convert("RGB")
    assert sheet.width == 2 * 400 + 3 * 8
    rows = 2 * (200 + 22) + 3 * 8
    assert sheet.height > rows
    centres = {"red": (208, 108), "blue": (616, 108), "lime": (208, 338)}
    for colour, (x, y) in centres.items():
        expected = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
        assert max(abs(a - b) for a, b in zip(sheet.getpixel((x, y)), expected)) < 12, colour
    strip = sheet.crop((8, 209, 408, 229)).convert("L")
    assert strip.getextrema()[0] < 100, "the caption is written in dark ink"
    below = {colour for _, colour in sheet.crop((0, rows, sheet.width, sheet.height)).getcolors(10**6)}
    for colour in CLASSES.colours:
        assert any(max(abs(a - b) for a, b in zip(colour, seen)) < 12 for seen in below), colour


def test_nothing_to_show_is_refused():
    with pytest.raises(ValueError, match="at least one picture"):
        contact_sheet([], CLASSES)
