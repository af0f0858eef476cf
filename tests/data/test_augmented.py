"""Augmentation depends on (seed, epoch, index) and on nothing else."""

import pytest
import torch
from torch.utils.data import DataLoader

from gmmseg.data import AugmentedDataset, Batch, Scenes, collate
from gmmseg.data.transforms import training_transform


def augmented(seed: int = 0) -> AugmentedDataset:
    return AugmentedDataset(Scenes("train", size=(32, 48), length=6), training_transform((24, 24)), seed)


def images(data: AugmentedDataset, epoch: int, workers: int = 0) -> torch.Tensor:
    data.set_epoch(epoch)
    loader: DataLoader[Batch] = DataLoader(data, batch_size=2, num_workers=workers, collate_fn=collate)
    return torch.cat([batch.images for batch in loader])


def test_order_and_global_randomness_do_not_matter() -> None:
    data, again = augmented(), augmented()
    torch.manual_seed(1)
    forward = [data[index].image for index in range(6)]
    torch.manual_seed(2)
    backward = [again[index].image for index in reversed(range(6))][::-1]
    assert all(map(torch.equal, forward, backward))


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    augmented()[0]
    assert torch.equal(before, torch.get_rng_state())


def test_seed_epoch_and_repetition_each_change_the_draw() -> None:
    data = augmented()
    first = data[1]
    assert not torch.equal(first.image, augmented(seed=1)[1].image)
    assert not torch.equal(first.image, data[1 + len(data)].image)
    assert data[1 + len(data)].name == first.name
    data.set_epoch(1)
    assert not torch.equal(first.image, data[1].image)
    data.set_epoch(0)
    assert torch.equal(first.image, data[1].image)


def test_workers_do_not_change_the_stream() -> None:
    assert torch.equal(images(augmented(), 3), images(augmented(), 3, workers=2))


def test_workers_that_live_on_follow_the_epoch() -> None:
    data = augmented()
    loader: DataLoader[Batch] = DataLoader(
        data, batch_size=3, num_workers=1, collate_fn=collate, persistent_workers=True
    )
    passes = []
    for epoch in (0, 1):
        data.set_epoch(epoch)
        passes.append(torch.cat([batch.images for batch in loader]))
    assert torch.equal(passes[1], images(augmented(), 1))
    assert not torch.equal(passes[0], passes[1])


def test_it_keeps_what_the_data_set_is() -> None:
    data = augmented()
    assert data.name == "scenes"
    assert data.label_space == Scenes("train").label_space
    with pytest.raises(ValueError, match="negative"):
        data[-1]
