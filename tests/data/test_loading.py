"""Batches depend on (seed, epoch) alone, also through the loader that accelerate prepares."""

import numpy as np
import pytest
from accelerate import Accelerator

from gmmseg.data.augmented import AugmentedDataset
from gmmseg.data.loading import EpochLoader, ShuffledSampler
from gmmseg.data.samplers import ClassBalancedSampler
from gmmseg.data.scenes import Scenes
from gmmseg.data.transforms import training_transform


def make_loader(sampler, **choices):
    data = AugmentedDataset(Scenes("train", size=(16, 24), length=6), training_transform((16, 24)), seed=3)
    return EpochLoader(data, sampler, 2, **choices)


def seen(loader, epochs):
    """Names and pixels of every batch of these epochs."""
    batches = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        batches += [(batch.names, batch.images.sum().item()) for batch in loader]
    return batches


@pytest.mark.parametrize("kind", ["shuffled", "balanced"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_prepared_loader_that_starts_in_a_later_epoch_goes_on_as_the_first_one(kind, workers):
    def sampler():
        return ShuffledSampler(6) if kind == "shuffled" else ClassBalancedSampler(np.ones((6, 3), int))

    plain = seen(make_loader(sampler()), range(4))
    prepare = Accelerator(cpu=True).prepare_data_loader
    assert seen(make_loader(sampler(), prepare=prepare, workers=workers), range(4)) == plain
    assert seen(make_loader(sampler(), prepare=prepare, workers=workers), range(2, 4)) == plain[6:]
