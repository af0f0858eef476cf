"""Samples and batches."""

import pytest
import torch

from gmmseg import distributed
from gmmseg.data import Sample, Scenes, collate
from gmmseg.samples import walk


def sample(height: int, width: int, name: str = "x") -> Sample:
    generator = torch.Generator().manual_seed(height)
    image = torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)
    return Sample(image, torch.randint(5, (height, width), generator=generator, dtype=torch.uint8), name)


def test_collate_keeps_pixels_and_order() -> None:
    samples = [sample(4, 6, "a"), sample(4, 6, "b")]
    batch = collate(samples)
    assert batch.images.dtype == torch.float32
    assert batch.labels.dtype == torch.int64
    assert batch.names == ["a", "b"]
    for index, one in enumerate(samples):
        assert torch.equal((batch.images[index] * 255).round().to(torch.uint8), one.image)
        assert torch.equal(batch.labels[index].to(torch.uint8), one.labels)
    assert batch.images.min() >= 0
    assert batch.images.max() <= 1


def test_collate_refuses_mixed_sizes() -> None:
    with pytest.raises(ValueError, match=r"\(4, 6\), \(5, 6\).*batch size of 1"):
        collate([sample(4, 6), sample(5, 6)])


def test_a_sample_whose_labels_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sun: image .* differ in size"):
        Sample(torch.zeros(3, 4, 6, dtype=torch.uint8), torch.zeros(4, 5, dtype=torch.uint8), "sun")


def test_collate_takes_floats_as_they_are() -> None:
    pixels = torch.rand(3, 4, 6)
    batch = collate([Sample(pixels, torch.zeros(4, 6, dtype=torch.uint8), "x")])
    assert torch.equal(batch.images[0], pixels)


def test_a_walk_sees_every_sample_in_order_and_tells_of_each() -> None:
    scenes, told = Scenes("val", size=(16, 16), length=4), []
    names = [each.name for each in walk(scenes, lambda *call: told.append(call))]
    assert names == [scenes[index].name for index in range(4)]
    assert told == [(index + 1, 4, name) for index, name in enumerate(names)]
    assert [each.name for each in walk(scenes, indices=[3, 0])] == [names[3], names[0]]


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_several_processes_share_a_walk(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes, seen = Scenes("val", size=(16, 16), length=5), []
    monkeypatch.setattr(distributed, "world_size", lambda: processes)
    for rank in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        seen += [each.name for each in walk(scenes)]
        assert len(list(walk(scenes, indices=range(5)))) == 5
    assert sorted(seen) == [scenes[index].name for index in range(5)]


def test_a_set_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match="scenes, split val: there are no images"):
        list(walk(Scenes("val", length=0)))
