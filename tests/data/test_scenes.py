"""The built-in scenes: the same for the same seed, multimodal, and strange only where they should be."""

import numpy as np
import pytest
import torch

from gmmseg.data import Scenes, ScenesAnomaly
from gmmseg.data.scenes import palette
from gmmseg.data.scenes.scenery import STRANGER, draw_scene
from gmmseg.labels import IGNORE


@pytest.fixture(scope="module")
def scenes() -> list:
    data = Scenes("train", length=60)
    return [data[index] for index in range(len(data))]


def test_a_scene_depends_on_seed_split_and_index_alone() -> None:
    once, again = Scenes("val", seed=3), Scenes("val", seed=3, length=7)
    assert torch.equal(once[5].image, again[5].image)
    assert torch.equal(once[5].labels, again[5].labels)
    for other in (Scenes("val", seed=4)[5], Scenes("train", seed=3)[5], once[6]):
        assert not torch.equal(once[5].labels, other.labels)


def test_the_same_street_is_drawn_at_every_size() -> None:
    for index in range(4):
        small, large = (Scenes("test", size=size)[index].labels for size in ((96, 160), (192, 320)))
        assert (small == large[::2, ::2]).float().mean() > 0.85


@pytest.mark.parametrize("size", [(16, 16), (33, 57), (200, 64)])
def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    scene = Scenes("train", size=size)[0]
    assert scene.image.shape == (3, *size)
    assert scene.labels.shape == size
    assert scene.image.dtype == scene.labels.dtype == torch.uint8


def test_labels_are_the_classes_and_all_of_them_occur(scenes: list) -> None:
    present = torch.stack([torch.bincount(scene.labels.flatten(), minlength=256) > 0 for scene in scenes])
    names = Scenes("train").label_space.names
    assert not present[:, len(names) :].any()
    assert (present[:, : len(names)].float().mean(0) > 0.4).all()


def test_class_ids_and_names_agree() -> None:
    names = Scenes("train").label_space.names
    assert [getattr(palette, name.upper()) for name in names] == list(range(len(names)))


@pytest.mark.parametrize("name", Scenes("train").label_space.names)
def test_every_class_has_several_looks(scenes: list, name: str) -> None:
    """Mean colours of a class over scenes fall into groups: two centres explain them better than one."""
    wanted = Scenes("train").label_space.names.index(name)
    looks = []
    for scene in scenes:
        inside = scene.labels == wanted
        if inside.sum() >= 20:
            looks.append(scene.image[:, inside].float().mean(1).numpy())
    points = np.stack(looks)
    spread = ((points - points.mean(0)) ** 2).sum()
    centres = points[[points.sum(1).argmin(), points.sum(1).argmax()]]
    for _ in range(10):
        nearest = ((points[:, None] - centres) ** 2).sum(-1).argmin(1)
        centres = np.stack([points[nearest == side].mean(0) for side in (0, 1)])
    assert min(np.bincount(nearest)) >= 3
    assert np.linalg.norm(centres[0] - centres[1]) > 30
    assert ((points - centres[nearest]) ** 2).sum() < 0.7 * spread  # one round cloud would give about 0.8


def test_colour_alone_does_not_give_the_class_away(scenes: list) -> None:
    """A lookup by colour, learned on one half, is far from perfect on the other: scenes are not trivial."""
    colour = [(scene.image.long() // 32) for scene in scenes]
    keys = [(c[0] * 64 + c[1] * 8 + c[2]).flatten() for c in colour]
    table = torch.zeros(512, 10)
    for key, scene in zip(keys[:40], scenes[:40]):
        table.index_put_((key, scene.labels.long().flatten()), torch.ones(len(key)), accumulate=True)
    best = table.argmax(1)
    right = (
        torch.cat([best[key] == s.labels.flatten() for key, s in zip(keys[40:], scenes[40:])]).float().mean()
    )
    assert 0.3 < right < 0.8


def test_strangers_are_added_to_an_unchanged_scene() -> None:
    changed = 0
    for index in range(6):
        plain, strange = (draw_scene((9, 0, index), (96, 160), strangers=s)[1] for s in (False, True))
        assert not (plain == STRANGER).any()
        assert (plain == strange)[strange != STRANGER].all()
        changed += (strange == STRANGER).sum()
    assert changed > 500


def test_anomaly_masks_are_zero_one_ignore_with_a_thin_border() -> None:
    data = ScenesAnomaly("test", length=25)
    masks = torch.stack([data[index].labels for index in range(len(data))])
    assert set(masks.unique().tolist()) == {0, 1, IGNORE}
    shares = [(masks == value).float().mean().item() for value in (1, IGNORE)]
    assert 0.005 < shares[1] < shares[0] < 0.1
    # Wherever anomaly and normal would touch, there is ignore between them.
    across = (masks[:, :, 1:] == 1) & (masks[:, :, :-1] == 0)
    down = (masks[:, 1:] == 1) & (masks[:, :-1] == 0)
    assert not across.any()
    assert not down.any()
    assert not (masks == 1).flatten(1).any(1).all(), "some scenes hold no unknown thing"


def test_strangers_are_no_colour_outliers(scenes: list) -> None:
    """Most pixels of unknown things have colours that training scenes show as well."""
    seen = torch.zeros(512, dtype=torch.long)
    for scene in scenes:
        c = scene.image.long() // 32
        seen += torch.bincount((c[0] * 64 + c[1] * 8 + c[2]).flatten(), minlength=512)
    data, common = ScenesAnomaly("val", length=20), []
    for index in range(len(data)):
        sample = data[index]
        c = sample.image.long()[:, sample.labels == 1] // 32
        common.append(seen[c[0] * 64 + c[1] * 8 + c[2]] > 200)
    assert torch.cat(common).float().mean() > 0.8


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no split 'train'; there are: val, test"):
        ScenesAnomaly("train")
    with pytest.raises(ValueError, match="at least 16"):
        Scenes("train", size=(8, 64))
    with pytest.raises(IndexError):
        Scenes("train", length=3)[3]
