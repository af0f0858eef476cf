"""Samples and batches."""

import pytest
import torch

from gmmseg.data import Sample, collate


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
