import pytest

from gmmseg.inference.inputs import find_inputs


@pytest.fixture
def tree(tmp_path):
    for name in (
        "in/a.jpg",
        "in/a.png",
        "in/sub/b.JPEG",
        "in/clip.mp4",
        "in/notes.txt",
        "in/.hidden.png",
        "other/a.jpg",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def names(*paths, out):
    return [item.name for item in find_inputs(paths, out)]


def test_folders_give_their_images_and_videos_in_order(tree):
    assert names(tree / "in", out=tree / "out") == ["a.jpg", "a.png", "clip.mp4", "sub/b.JPEG"]
    assert [item.is_video for item in find_inputs([tree / "in"], tree / "out")] == [False, False, True, False]


def test_files_are_taken_as_they_are_given(tree):
    assert names(tree / "in/notes.txt", out=tree) == ["notes.txt"]


def test_names_never_collide(tree):
    both = names(tree / "in", tree / "other", out=tree / "out")
    assert both == ["in/a.jpg", "in/a.png", "in/clip.mp4", "in/sub/b.JPEG", "other/a.jpg"]
    assert names(tree / "in/a.jpg", tree / "other/a.jpg", out=tree / "out") == ["a.jpg", "a~2.jpg"]
    (tree / "in/A.jpg").touch()
    found = names(tree / "in", out=tree / "out")
    assert len({name.casefold() for name in found}) == len(found) == 5


def test_a_folder_of_the_name_of_a_video_has_outputs_of_its_own(tree):
    """As where somebody has taken clip.mp4 apart into clip/000000.jpg."""
    (tree / "in/clip").mkdir()
    (tree / "in/clip/000000.jpg").touch()
    outputs = {item.name: item.output for item in find_inputs([tree / "in"], tree / "out")}
    assert outputs["clip.mp4"] == "clip.mp4"
    assert outputs["clip/000000.jpg"] == "clip/000000"
    assert outputs["sub/b.JPEG"] == "sub/b"


def test_earlier_predictions_are_not_predicted_again(tree):
    (tree / "in/out/labels").mkdir(parents=True)
    (tree / "in/out/labels/a.jpg.png").touch()
    assert names(tree / "in", out=tree / "in/out") == ["a.jpg", "a.png", "clip.mp4", "sub/b.JPEG"]


def test_folders_behind_links_are_looked_through_once(tree):
    (tree / "other/up").symlink_to(tree / "in")
    (tree / "in/linked").symlink_to(tree / "other")
    (tree / "in/again").symlink_to(tree / "in/sub")
    (tree / "in/sub/around").symlink_to("..")
    expected = ["a.jpg", "a.png", "clip.mp4", "sub/b.JPEG", "linked/a.jpg"]
    assert names(tree / "in", out=tree / "out") == expected
    assert names(tree / "in", out=tree / "other") == expected[:-1]


def test_missing_inputs_and_writing_into_the_input_are_refused(tree):
    with pytest.raises(FileNotFoundError, match="gone: no such file or folder"):
        names(tree / "gone", out=tree / "out")
    with pytest.raises(ValueError, match="choose another output folder"):
        names(tree / "in", out=tree / "other" / ".." / "in")
