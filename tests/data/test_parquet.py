"""Rows of parquet files as a data set: found, decoded as files are, refused in one line."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from gmmseg.data import DataError, check_dataset, open_dataset, parquet
from gmmseg.data.samplers import fingerprint
from gmmseg.labels import LabelError

datasets = pytest.importorskip("datasets")
NAMES = ["sky", "grass"]


@pytest.fixture(autouse=True)
def _no_hub_and_a_cache_of_its_own(tmp_path_factory, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def rows():
    """Seven images with their label maps (h w), sizes odd and different."""
    rng = np.random.default_rng(0)
    sizes = [(11 + index, 17 - index) for index in range(7)]
    return [(rng.integers(0, 255, (*s, 3), np.uint8), rng.integers(0, 2, s, np.uint8)) for s in sizes]


def write(path, rows, *, label="image", names=("image", "label"), group=2):
    """Parquet of the rows: labels as an image, as lists of ints, or as lists of class labels."""
    kind = {
        "image": datasets.Image(),
        "ints": datasets.List(datasets.List(datasets.Value("int32"))),
        "classes": datasets.List(datasets.List(datasets.ClassLabel(names=NAMES))),
    }[label]
    features = datasets.Features(
        {names[0]: datasets.Image(), "place": datasets.Value("string"), names[1]: kind}
    )
    table = [
        {
            names[0]: Image.fromarray(image),
            "place": "x",
            names[1]: Image.fromarray(ids) if label == "image" else ids.tolist(),
        }
        for image, ids in rows
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(table, features=features).to_parquet(path, batch_size=group)


@pytest.fixture
def root(tmp_path, rows):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", rows[:3])
    write(tmp_path / "data" / "train-00001-of-00002.parquet", rows[3:])
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", rows[:2])
    (tmp_path / "id2label.json").write_text(json.dumps({"0": "sky", "1": "grass"}))
    return tmp_path


@pytest.mark.parametrize("name", ["hf", "hf_stream"])
def test_samples_are_the_rows_whatever_the_order(root, rows, name):
    dataset = open_dataset(name, root, "train")
    assert (len(dataset), dataset.label_space.names) == (7, ("sky", "grass"))
    for index in (6, 0, 3, 2, 0, 5):
        sample = dataset[index]
        assert (sample.image.permute(1, 2, 0).numpy() == rows[index][0]).all()
        assert (sample.labels.numpy() == rows[index][1]).all()
        assert (dataset.labels(index) == sample.labels).all()
    assert len({dataset[index].name for index in range(7)}) == 7
    assert len(open_dataset(name, root, "val")) == 2  # which the set itself calls validation


def test_a_streamed_set_keeps_few_groups_and_travels_to_workers(root, rows):
    dataset = open_dataset("hf_stream", root, "train")
    for index in range(7):
        _ = dataset[index]
        assert len(dataset.rows._kept) <= parquet.KEPT_GROUPS
    again = pickle.loads(pickle.dumps(dataset))
    assert (again[4].labels.numpy() == rows[4][1]).all()
    with pytest.raises(IndexError):
        dataset.rows[7]


def test_the_fingerprint_follows_the_files(root, rows):
    before = [fingerprint(open_dataset(name, root, "train")) for name in ("hf", "hf_stream")]
    assert before == [fingerprint(open_dataset(name, root, "train")) for name in ("hf", "hf_stream")]
    write(root / "data" / "train-00000-of-00002.parquet", rows[1:4])
    dataset = open_dataset("hf", root, "train")
    assert fingerprint(dataset) not in before
    assert (dataset.labels(0).numpy() == rows[1][1]).all()  # and so does the copy of the rows


@pytest.mark.parametrize("label", ["classes", "ints"])
@pytest.mark.parametrize("name", ["hf", "hf_stream"])
def test_label_maps_may_be_lists(tmp_path, rows, name, label):
    write(tmp_path / "train.parquet", rows, label=label, names=("photo", "ids"))
    if label == "ints":
        (tmp_path / "classes.txt").write_text("sky 1 2 3\ngrass 4 5 6")
    dataset = open_dataset(name, tmp_path, "train")
    assert dataset.label_space.names == ("sky", "grass")
    assert (dataset[5].labels.numpy() == rows[5][1]).all()
    assert (dataset.label_space.colours == ((1, 2, 3), (4, 5, 6))) == (label == "ints")


def test_ids_with_gaps_become_train_ids_and_others_are_refused(root, rows):
    shifted = [(image, np.where(ids == 1, 7, 255).astype(np.uint8)) for image, ids in rows[:2]]
    write(root / "data" / "train-00000-of-00002.parquet", shifted)
    (root / "id2label.json").write_text(json.dumps({"7": "grass", "3": "sky"}))
    dataset = open_dataset("hf", root, "train")
    assert dataset.label_space.names == ("sky", "grass")
    assert (dataset[0].labels.numpy() == np.where(shifted[0][1] == 7, 1, 255)).all()
    with pytest.raises(LabelError, match=r"train, row 2: label values .* 0 \("):
        dataset[2]
    report = check_dataset("hf", root)
    assert not report.ok
    assert any("row 2" in problem for problem in report.all_problems)


def test_the_check_counts_pixels(root, rows):
    report = check_dataset("hf_stream", root)
    assert report.ok
    assert {split: each.pairs for split, each in report.splits.items()} == {"train": 7, "validation": 2}
    counted = np.bincount(np.concatenate([ids.ravel() for _, ids in rows]))
    assert report.splits["train"].pixels.tolist() == counted.tolist()


def test_columns_are_named_where_they_are_not_clear(tmp_path, rows):
    grey = [(image[..., 0], ids) for image, ids in rows]
    write(tmp_path / "train.parquet", grey, names=("b", "a"))
    (tmp_path / "classes.txt").write_text("sky\ngrass")
    with pytest.raises(DataError, match=r"columns: b, place, a\); say it behind the name: .*@IMAGE,LABELS"):
        open_dataset("hf", tmp_path, "train")
    dataset = open_dataset("hf_stream", f"{tmp_path}@b,a", "train")
    assert (dataset[1].labels.numpy() == rows[1][1]).all()
    assert (dataset[1].image[0].numpy() == grey[1][0]).all()
    for columns, said in (("b,c", "no column 'c'"), ("b", "two columns, IMAGE,LABELS")):
        with pytest.raises(DataError, match=said):
            open_dataset("hf", f"{tmp_path}@{columns}", "train")


def test_what_is_no_such_set_is_refused_in_a_line(root, rows, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    for place, split, said in [
        (root, "test", "has no split 'test'; there are: train, validation"),
        (root / "absent", "train", "there is no such folder of parquet files"),
        (empty, "train", "cannot be read as a data set|is no folder of parquet files"),
        (None, "train", "hf: say which set"),
    ]:
        with pytest.raises(DataError, match=said):
            open_dataset("hf", place, split)
    with pytest.raises(OSError, match=r"owner/absent: the Hugging Face hub cannot be reached"):
        open_dataset("hf", "owner/absent", "train")
    (root / "classes.txt").write_text("sky\nwater")
    with pytest.raises(DataError, match=r"id2label\.json and classes\.txt name different classes"):
        open_dataset("hf", root, "train")
    for name in ("classes.txt", "id2label.json"):
        (root / name).unlink()
    with pytest.raises(DataError, match=r"names no classes; write classes\.txt"):
        open_dataset("hf", root, "train")
    (root / "data" / "train-00000-of-00002.parquet").write_bytes(b"PAR1 no parquet PAR1")
    for name in ("hf", "hf_stream"):
        with pytest.raises(DataError, match="cannot be read"):
            open_dataset(name, root, "train")


@pytest.mark.parametrize(
    "text", ["[1]", "{}", '{"a": "b"}', '{"0": 3}', '{"0": "a", "1": "a"}', '{"255": "a"}', '{"0": " "}', "{"]
)
def test_an_odd_id2label_is_refused(tmp_path, text):
    (tmp_path / "id2label.json").write_text(text)
    with pytest.raises(DataError, match=r"id2label\.json: "):
        parquet.read_id2label(tmp_path / "id2label.json")


def test_a_row_without_an_image_is_named(tmp_path, rows):
    write(tmp_path / "train.parquet", rows[:2])
    (tmp_path / "classes.txt").write_text("sky\ngrass")
    table = datasets.Dataset.from_parquet(str(tmp_path / "train.parquet")).cast_column(
        "label", datasets.Image(decode=False)
    )
    table = table.map(lambda row, index: {"label": None} if index else row, with_indices=True)
    table.to_parquet(tmp_path / "train.parquet")
    dataset = open_dataset("hf_stream", tmp_path, "train")
    with pytest.raises(DataError, match="row 1: holds no image"):
        dataset[1]
