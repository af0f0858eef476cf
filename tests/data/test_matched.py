import torch

from gmmseg.data.matched import MatchedClasses
from gmmseg.data.scenes import Scenes
from gmmseg.labels import IGNORE, LabelSpace


def test_labels_are_those_of_the_model():
    scenes = Scenes("val", size=(32, 48), length=2)
    space = LabelSpace(("car", "ground", "cone"), ((1, 2, 3),) * 3)
    places = {"car": 0, "road": 1, "pavement": 1}
    matched = MatchedClasses(scenes, space, [places.get(name) for name in scenes.label_space.names])
    old, new = scenes[1].labels, matched[1].labels
    assert matched.label_space is space
    for place, name in enumerate(scenes.label_space.names):
        found = new[old == place].unique().tolist()
        assert found in ([], [places.get(name, IGNORE)])
    assert torch.equal(matched.labels(1), new)
    assert bool((new == 1).any())
