"""Data sets inside others: what is not changed on purpose stays."""

import hashlib

import pytest
import torch

from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.cached import CachedDataset
from gmmseg.data.catalog import open_dataset
from gmmseg.data.held_out import HiddenClasses, WithoutClasses
from gmmseg.data.samplers import fingerprint
from gmmseg.data.scenes import Scenes, ScenesAnomaly
from gmmseg.data.wrapped import WrappedDataset

SCENES = Scenes("val", size=(32, 48), length=3, seed=5)
WRAPPERS = {
    "wrapped": WrappedDataset(SCENES),
    "cached": CachedDataset(SCENES),
    "augmented": AugmentedDataset(SCENES, lambda sample, generator=None: sample),
    "without": WithoutClasses(SCENES, ("car",)),
    "hidden": HiddenClasses(SCENES, ("car",)),
    "nested": CachedDataset(WithoutClasses(SCENES, ("car",))),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_is_a_data_set_of_the_same_images(name):
    wrapper = WRAPPERS[name]
    assert (wrapper.split, wrapper.root, len(wrapper)) == ("val", None, 3)
    assert wrapper.content() == SCENES.content()
    for index in range(3):
        assert torch.equal(wrapper[index].image, SCENES[index].image)
        assert torch.equal(wrapper.labels(index), wrapper[index].labels)


def test_names_and_classes_change_where_the_labels_do():
    assert WRAPPERS["cached"].name == WRAPPERS["augmented"].name == "scenes"
    assert WRAPPERS["nested"].name == WRAPPERS["without"].name == "scenes_without_car"
    assert len(WRAPPERS["nested"].label_space) == len(SCENES.label_space) - 1
    assert WRAPPERS["hidden"].name == "scenes_hidden_car"
    assert WRAPPERS["hidden"].label_space is None


def test_no_class_of_an_anomaly_set_can_be_hidden():
    with pytest.raises(ValueError, match="scenes_anomaly marks what is unknown"):
        WithoutClasses(ScenesAnomaly("val", length=1), ("car",))


def test_a_fingerprint_holds_every_file_however_it_is_wrapped(folder_tree):
    """The text that is hashed is written out here: crops depend on the images, counts on the labels."""
    nested = WRAPPERS["nested"]
    text = f"scenes_without_car val {nested.label_space}5 (32, 48) 3"
    assert fingerprint(nested) == hashlib.sha256(text.encode()).hexdigest()
    files = open_dataset("folder", folder_tree, "train")
    text = f"folder train {files.label_space}"
    for pair in files.pairs:
        for path in (pair.image, pair.labels):
            stat = path.stat()
            text += f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n"
    assert fingerprint(CachedDataset(files)) == hashlib.sha256(text.encode()).hexdigest()
