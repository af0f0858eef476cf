from gmmseg.data.cached import CachedDataset
from gmmseg.data.scenes import Scenes


def test_samples_are_read_once_and_stay_the_same(monkeypatch):
    scenes = Scenes("val", size=(32, 48), length=3)
    kept, expected = CachedDataset(scenes), [scenes[index] for index in range(3)]
    first = [kept[index] for index in range(3)]
    monkeypatch.setattr(Scenes, "__getitem__", None)
    for index in range(3):
        assert kept[index] is first[index]
        assert (kept[index].image == expected[index].image).all()
        assert (kept.labels(index) == expected[index].labels).all()
    assert len(kept) == 3
    assert kept.label_space is scenes.label_space
