"""Laws of the joint transforms: labels move with the image, sizes hold, draws are reproducible."""

import colorsys

import pytest
import torch
from torch import Generator, Tensor

from gmmseg.data import Sample
from gmmseg.data.transforms import (
    Compose,
    PhotometricJitter,
    RandomFlip,
    RandomScaleCrop,
    training_transform,
    turn_hue,
)
from gmmseg.labels import IGNORE


def blocks(height: int = 60, width: int = 80, cell: int = 10) -> Sample:
    """Square blocks whose colour is a function of their label: image == 20 + 10 * label in every channel."""
    rows, columns = torch.arange(height)[:, None] // cell, torch.arange(width)[None] // cell
    labels = ((rows * 3 + columns * 5) % 20).to(torch.uint8)
    return Sample((20 + 10 * labels).expand(3, -1, -1).contiguous(), labels, "blocks")


def disagreement(sample: Sample) -> Tensor:
    """Where the image no longer is the colour of its label (padding aside), (h w) bool."""
    valid = sample.labels != IGNORE
    return valid & ((sample.image[0].int() - 20 - 10 * sample.labels.int()).abs() > 5)


@pytest.mark.parametrize("seed", range(12))
def test_labels_move_with_the_image(seed: int) -> None:
    transform = Compose((RandomScaleCrop((40, 48), max_share=1.0), RandomFlip()))
    moved = transform(blocks(), Generator().manual_seed(seed))
    assert moved.labels.shape == (40, 48)
    # Smooth resizing mixes colours in a pixel or two along block edges only.
    wrong = disagreement(moved)
    inner = torch.nn.functional.avg_pool2d(wrong[None].float(), 5, 1)
    assert inner.max() < 1
    assert wrong.float().mean() < 0.35
    small = moved.labels.float()[None, None]
    flat = torch.nn.functional.max_pool2d(small, 5, 1, 2) == -torch.nn.functional.max_pool2d(-small, 5, 1, 2)
    assert not (wrong & flat[0, 0]).any()


def test_a_crop_at_scale_one_is_an_exact_cut() -> None:
    sample = blocks()
    cut = RandomScaleCrop((30, 40), (1.0, 1.0), max_share=1.0)(sample, Generator().manual_seed(4))
    windows = sample.labels.unfold(0, 30, 1).unfold(1, 40, 1)
    assert (windows == cut.labels).flatten(2).all(2).any()
    assert not disagreement(cut).any()


def test_labels_are_not_shifted_against_the_image_when_enlarged() -> None:
    sample = blocks(20, 20, cell=10)
    big = RandomScaleCrop((80, 80), (4.0, 4.0), max_share=1.0)(sample)
    mirrored = Sample(sample.image.flip(-1), sample.labels.flip(-1), "mirrored")
    big_mirrored = RandomScaleCrop((80, 80), (4.0, 4.0), max_share=1.0)(mirrored)
    assert torch.equal(big.labels.flip(-1), big_mirrored.labels)
    edge = (big.image[0, 5].int().diff().abs()).argmax().item() + 1
    assert big.labels[5].int().diff().abs().argmax().item() + 1 == pytest.approx(edge, abs=1)


def test_small_images_are_padded_to_ignore() -> None:
    padded = RandomScaleCrop((50, 70), (0.5, 0.5))(blocks(40, 40))
    assert (padded.labels[:20, :20] != IGNORE).all()
    assert (padded.labels[20:] == IGNORE).all()
    assert (padded.labels[:, 20:] == IGNORE).all()
    assert (padded.image[:, 20:] == 0).all()


@pytest.mark.parametrize("size", [(1, 1), (32, 48)])
def test_an_image_may_shrink_to_one_pixel_its_mean(size: tuple[int, int]) -> None:
    sample = Sample(
        torch.arange(3 * 32 * 48).reshape(3, 32, 48).to(torch.uint8), torch.ones(32, 48).long(), "x"
    )
    small = RandomScaleCrop(size, (0.01, 0.01), max_share=1.0)(sample, Generator().manual_seed(0))
    assert small.image.shape == (3, *size)
    assert small.image.dtype == torch.uint8
    assert (small.labels != IGNORE).sum() == 1
    assert ((small.image[:, 0, 0] - sample.image.float().mean((1, 2))).abs() < 30).all()


def test_crops_of_one_class_are_avoided() -> None:
    labels = torch.zeros(60, 200, dtype=torch.uint8)
    labels[:, 100:120] = 1
    sample = Sample(torch.zeros(3, 60, 200, dtype=torch.uint8), labels, "x")
    generator = Generator().manual_seed(0)
    shares: dict[float, float] = {}
    for most in (0.75, 1.0):
        crop = RandomScaleCrop((40, 40), (1.0, 1.0), max_share=most)
        shares[most] = (
            sum((crop(sample, generator).labels == 1).float().mean() >= 0.25 for _ in range(200)) / 200
        )
    assert shares[1.0] < 0.4
    assert shares[0.75] > 0.9


def test_short_side_sets_what_the_scale_refers_to() -> None:
    crop = RandomScaleCrop((64, 64), (1.0, 1.0), max_share=1.0, short_side=30)
    labels = crop(blocks(60, 80)).labels
    assert (labels[:30, :40] != IGNORE).all()
    assert (labels[30:] == IGNORE).all()
    assert (labels[:, 40:] == IGNORE).all()


def test_flip_mirrors_half_of_the_time() -> None:
    sample, generator = blocks(), Generator().manual_seed(0)
    flips = 0
    for _ in range(200):
        flipped = RandomFlip()(sample, generator)
        if not torch.equal(flipped.labels, sample.labels):
            assert torch.equal(flipped.labels, sample.labels.flip(-1))
            assert torch.equal(flipped.image, sample.image.flip(-1))
            flips += 1
    assert 70 < flips < 130


def test_jitter_changes_colours_within_bounds_and_never_labels() -> None:
    generator = Generator().manual_seed(0)
    image = torch.randint(60, 190, (3, 32, 32), generator=generator, dtype=torch.uint8)
    sample = Sample(image, torch.zeros(32, 32, dtype=torch.uint8), "x")
    changes = []
    for _ in range(100):
        jittered = PhotometricJitter()(sample, generator)
        assert torch.equal(jittered.labels, sample.labels)
        assert jittered.image.dtype == torch.uint8
        changes.append((jittered.image.float() - image.float()).abs().mean().item())
    assert max(changes) < 100
    assert 0 < sum(change == 0 for change in changes) < 25
    assert sum(changes) / len(changes) > 5


@pytest.mark.parametrize("turn", [-0.05, 0.03, 0.25, 1 / 3])
def test_turning_hue(turn: float) -> None:
    """Grey stays grey, brightness is kept, hue moves by the turn, a third of a circle swaps channels."""
    grey = torch.full((3, 2, 2), 77, dtype=torch.uint8)
    assert torch.equal(turn_hue(grey, turn), grey)
    colour = torch.tensor([140, 110, 110], dtype=torch.uint8).reshape(3, 1, 1)
    turned = turn_hue(colour, turn).flatten()
    assert turned.float().mean().item() == pytest.approx(120, abs=1)
    hue = colorsys.rgb_to_hsv(*(turned / 255).tolist())[0]
    assert (hue - turn + 0.5) % 1 - 0.5 == pytest.approx(0, abs=0.02)
    if turn == 1 / 3:
        assert turned.tolist() == [110, 140, 110]


def test_the_same_generator_gives_the_same_sample() -> None:
    transform = training_transform((40, 48))
    one, two, other = (transform(blocks(), Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(one.image, two.image)
    assert torch.equal(one.labels, two.labels)
    assert not torch.equal(one.image, other.image)
    assert type(one.image) is type(one.labels) is Tensor


@pytest.mark.parametrize("shape", [(1, 1), (3, 500), (7, 5)])
def test_odd_sizes_come_out_right(shape: tuple[int, int]) -> None:
    sample = Sample(torch.zeros(3, *shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8), "x")
    for seed in range(5):
        moved = training_transform((16, 24))(sample, Generator().manual_seed(seed))
        assert moved.labels.shape == (16, 24)
        assert (moved.labels == 0).any()


def test_an_unlabelled_image_is_cropped_all_the_same() -> None:
    sample = blocks()
    empty = Sample(sample.image, torch.full_like(sample.labels, IGNORE), "x")
    assert (training_transform((20, 20))(empty).labels == IGNORE).all()


def test_impossible_settings_are_refused() -> None:
    for settings in (
        {"size": (0, 5)},
        {"size": (5, 5), "scale": (2.0, 0.5)},
        {"size": (5, 5), "max_share": 0.0},
    ):
        with pytest.raises(ValueError, match="must be positive"):
            RandomScaleCrop(**settings)
