import pytest
import torch

from gmmseg.labels import IGNORE
from gmmseg.mixture.sampling import draw, evenly_spaced, sample_points


def draw_from(labels, groups, per_group, seed=0):
    points = torch.arange(len(labels), dtype=torch.float32)[:, None]
    sampled, sampled_labels = sample_points(
        points, labels, groups, num_classes=4, per_group=per_group, seed=seed
    )
    return sampled[:, 0].long(), sampled_labels


def test_at_most_so_many_per_class_and_image_and_never_an_ignored_one():
    labels = torch.randint(0, 3, (3000,))
    labels[::7] = IGNORE
    groups = torch.arange(3).repeat_interleave(1000)
    index, sampled_labels = draw_from(labels, groups, 20)
    assert torch.equal(labels[index], sampled_labels)
    for c in range(3):
        for g in range(3):
            assert ((sampled_labels == c) & (groups[index] == g)).sum() == 20
    assert len(index.unique()) == len(index)


def test_all_points_of_a_rare_class_are_taken():
    labels = torch.zeros(500, dtype=torch.int64)
    labels[[3, 77, 400]] = 2
    index, sampled_labels = draw_from(labels, torch.zeros_like(labels), 10)
    assert sorted(index[sampled_labels == 2].tolist()) == [3, 77, 400]


def test_sampling_is_even_over_points_and_changes_with_the_seed():
    labels = torch.zeros(200, dtype=torch.int64)
    counts = torch.zeros(200)
    for seed in range(400):
        index, _ = draw_from(labels, torch.zeros_like(labels), 50, seed)
        counts[index] += 1
    # 400 draws with chance 1/4: mean 100, standard deviation 8.7
    assert counts.min() > 60
    assert counts.max() < 140


def test_within_a_class_the_images_are_shuffled_together():
    labels, groups = torch.zeros(2000, dtype=torch.int64), torch.arange(2).repeat_interleave(1000)
    index, _ = draw_from(labels, groups, 100)
    assert 30 < groups[index[:100]].sum() < 70


def test_draw_takes_the_lowest_tickets_of_each_cell():
    cells, tickets = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([5, 9, 2, 7, 1])
    assert draw(cells, tickets, 2).tolist() == [4, 1, 2, 0]


@pytest.mark.parametrize("most", [1, 3, 20])
def test_evenly_spaced_equals_a_loop(generator, most):
    cells = torch.randint(6, (97,), generator=generator)
    expected = torch.zeros(97, dtype=torch.bool)
    for cell in range(6):
        places = (cells == cell).nonzero().squeeze(1)
        n = len(places)
        chosen = range(n) if n <= most else [i * n // most for i in range(most)]
        expected[places[list(chosen)]] = True
    assert torch.equal(evenly_spaced(cells, most), expected)
