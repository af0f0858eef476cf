"""Colour-coded masks become ids: every colour is named, nothing is replaced, a stopped conversion goes on."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from gmmseg.cli import app
from gmmseg.data import DataError, mask_colours
from gmmseg.data.mask_colours import convert_masks, found_colours, read_colours

COLOURS = np.array([(128, 64, 128), (70, 130, 180), (0, 0, 0)], np.uint8)


@pytest.fixture
def ids():
    return {name: np.random.default_rng(seed).integers(0, 2, (7, 9)) for seed, name in enumerate(("a", "b"))}


@pytest.fixture
def masks(tmp_path, ids):
    """Two masks in two folders, as RGB and as palette, with a black corner."""
    for folder, name in (("train", "a"), ("val", "b")):
        (tmp_path / "masks" / folder).mkdir(parents=True)
        ids[name][0, :2] = 2
        image = Image.fromarray(COLOURS[ids[name]])
        image = image.quantize(4) if name == "b" else image
        image.save(tmp_path / "masks" / folder / f"{name}.png")
    return tmp_path / "masks"


@pytest.fixture
def colours(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("road 128 64 128\nopen sky 70 130 180\n")
    return path


def converted(*words):
    return CliRunner().invoke(app, ["data", "convert-masks", *map(str, words)])


def test_ids_are_those_of_a_loop_over_pixels(masks, colours, ids, tmp_path):
    assert convert_masks(masks, tmp_path / "out", colours, ignore=[(0, 0, 0)]) == (2, 0)
    for folder, name in (("train", "a"), ("val", "b")):
        pixels = np.array(Image.open(masks / folder / f"{name}.png").convert("RGB"))
        table = {(128, 64, 128): 0, (70, 130, 180): 1, (0, 0, 0): 255}
        expected = [[table[tuple(map(int, pixel))] for pixel in line] for line in pixels]
        found = np.array(Image.open(tmp_path / "out" / folder / f"{name}.png"))
        assert found.dtype == np.uint8
        assert found.tolist() == expected
        assert (found == np.where(ids[name] == 2, 255, ids[name])).all()


def test_a_colour_without_a_name_is_an_error_with_file_colour_and_pixels(masks, colours, tmp_path):
    with pytest.raises(
        DataError, match=r"a\.png: colours that .*classes\.txt does not name: 0 0 0 \(2 pixels\)"
    ):
        convert_masks(masks, tmp_path / "out", colours)
    assert not list((tmp_path / "out").rglob("*.png"))
    with pytest.raises(DataError, match=r"\(128, 64, 128\) is the colour of a class, and to be ignored"):
        convert_masks(masks, tmp_path / "out", colours, ignore=[(128, 64, 128)])


def test_a_stopped_conversion_goes_on_and_nothing_is_replaced(masks, colours, tmp_path, monkeypatch):
    out, real = tmp_path / "out", mask_colours.write_bytes

    def stop_at_the_second(path, content):
        if path.stem == "b":
            raise KeyboardInterrupt
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(mask_colours, "write_bytes", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            convert_masks(masks, out, colours, ignore=[(0, 0, 0)])
    before = (out / "train" / "a.png").stat().st_mtime_ns
    assert convert_masks(masks, out, colours, ignore=[(0, 0, 0)]) == (1, 1)
    assert (out / "train" / "a.png").stat().st_mtime_ns == before
    colours.write_text("open sky 70 130 180\nroad 128 64 128\n")  # other ids
    with pytest.raises(DataError, match=r"a\.png: is there already and is not what"):
        convert_masks(masks, out, colours, ignore=[(0, 0, 0)])


def test_without_a_list_the_command_writes_one_that_only_needs_names(masks, ids, tmp_path):
    out = tmp_path / "out"
    asked = converted(masks, out)
    assert asked.exit_code == 1
    assert "3 colours: write the name of a class in the place of each ?" in asked.output
    lines = (out / "colours.txt").read_text().splitlines()
    assert sorted(lines) == ["? 0 0 0", "? 128 64 128", "? 70 130 180"]
    counts = list(found_colours(masks, out).values())
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == 2 * 63
    for words, said in (
        ([], "is there already"),
        (["--colours", out / "colours.txt"], "in the place of every"),
    ):
        assert said in str(converted(masks, out, *words).exception)
    (out / "colours.txt").write_text("road 128 64 128\nsky 70 130 180\nborder 0 0 0\n")
    done = converted(masks, out, "--colours", out / "colours.txt")
    assert done.exit_code == 0
    assert f"2 masks written to {out}" in done.output
    assert (np.array(Image.open(out / "train" / "a.png")) == ids["a"]).all()


@pytest.mark.parametrize("out", ["masks", "masks/ids"])
def test_masks_are_not_written_among_the_masks(masks, colours, tmp_path, out):
    with pytest.raises(DataError, match="lies in the folder of the masks"):
        convert_masks(masks, tmp_path / out, colours)


def test_what_has_no_colour_of_its_own_is_refused(masks, colours, tmp_path):
    odd = masks / "odd.png"
    Image.new("RGBA", (4, 4), (1, 2, 3, 0)).save(odd)
    with pytest.raises(DataError, match=r"odd\.png: is transparent in places"):
        read_colours(odd)
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(odd)
    with pytest.raises(DataError, match=r"odd\.png: its pixels are I;16"):
        read_colours(odd)
    odd.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"odd\.png: cannot be read as a mask"):
        read_colours(odd)
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(odd)
    with pytest.raises(DataError, match="more than classes can be"):
        found_colours(masks, tmp_path / "out")
    Image.new("RGB", (2, 2)).save(masks / "odd.bmp")
    with pytest.raises(DataError, match="would become the same file"):
        found_colours(masks, tmp_path / "out")


@pytest.mark.parametrize("word", ["0,0", "0,0,256", "black", "0,0,-1", "0,0,", "²,0,0"])
def test_a_colour_to_ignore_is_three_numbers(masks, colours, tmp_path, word):
    refused = converted(masks, tmp_path / "out", "--colours", colours, "--ignore", word)
    assert "a colour is three numbers from 0 to 255" in str(refused.exception)
