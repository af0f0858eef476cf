"""classes.txt: names, with colours or without."""

import pytest

from gmmseg.class_colours import default_colours
from gmmseg.data import DataError, open_dataset
from gmmseg.data.class_list import read_classes, read_coloured_classes


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "classes.txt"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("road\nsky", ("road", "sky")),
        ("traffic light\nperson 2\n\n", ("traffic light", "person 2")),
        ("route 66 7\nzone 1 2", ("route 66 7", "zone 1 2")),  # two numbers are no colour
        ("a1 2 3\nb4 5 6", ("a1 2 3", "b4 5 6")),  # the first of them is part of a word
        ("?\nunknown", ("?", "unknown")),
    ],
)
def test_lines_without_a_colour_are_names_as_they_stand(written, text, names):
    space = read_classes(written(text))
    assert (space.names, space.colours) == (names, default_colours(len(names)))


def test_three_numbers_at_the_end_are_the_colour(written):
    space = read_classes(written("road 128 64 128\ntraffic light\t250 170  030\narea 51 2 3 0 0 255\n"))
    assert space.names == ("road", "traffic light", "area 51 2 3")
    assert space.colours == ((128, 64, 128), (250, 170, 30), (0, 0, 255))
    assert read_coloured_classes(written("road 1 2 3")).colours == ((1, 2, 3),)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("road 128 64 128\nsky", r"line 1 \('road 128 64 128'\) ends in a colour, line 2 \('sky'\) does not"),
        ("sky\nroad 1 2 3", r"line 2 .* ends in a colour, line 1 \('sky'\) does not"),
        ("road 256 0 0", r"line 1 .* has none above 255"),
        (f"road {'9' * 5000} 0 0", r"line 1 .* has none above 255"),
        ("road 00000000000255 0 0", r"line 1 .* has none above 255"),
        ("128 64 128", "one different class name on every line"),
        ("road 1 2 3\nroad 4 5 6", "one different class name"),
        ("road 1 2 3\nsky 1 2 3", r"'road' and 'sky' have the same colour \(1, 2, 3\)"),
        ("? 1 2 3\n? 4 5 6", r"the name of a class in the place of every \?"),
        ("road -1 2 3\nsky 1 2 3 4", "ends in a colour, line 1"),
    ],
)
def test_ambiguous_lines_are_refused_with_their_number(written, text, named):
    with pytest.raises(DataError, match=named):
        read_classes(written(text))


def test_a_list_without_colours_is_no_list_of_colours(written):
    with pytest.raises(DataError, match="names no colours; write NAME R G B"):
        read_coloured_classes(written("road\nsky"))


def test_a_folder_takes_its_colours_from_the_list(folder_tree):
    names = (folder_tree / "classes.txt").read_text().split()
    (folder_tree / "classes.txt").write_text("".join(f"{name} {i} 0 7\n" for i, name in enumerate(names)))
    space = open_dataset("folder", folder_tree, "train").label_space
    assert (list(space.names), space.colours) == (names, ((0, 0, 7), (1, 0, 7), (2, 0, 7)))
