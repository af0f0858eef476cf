from collections import deque

import pytest
import torch

from gmmseg.mixture import DecayedStatistics, FeatureQueue
from gmmseg.mixture.memory import Moments


def random_batch(generator, classes=(0, 2), m=9, k=3, d=4, hard=True):
    points = torch.randn(len(classes), m, d, generator=generator)
    responsibilities = torch.rand(len(classes), m, k, generator=generator).softmax(-1)
    if hard:
        responsibilities = torch.nn.functional.one_hot(responsibilities.argmax(-1), k).float()
    responsibilities[:, m - 2 :] = 0  # padding
    exact, shares = points.double(), responsibilities.double().transpose(1, 2)
    gained = Moments(shares.sum(-1), shares @ exact, shares @ exact.square())
    return torch.tensor(classes), points, responsibilities, gained


class SlowQueue:
    """One deque per (class, component)."""

    def __init__(self, capacity):
        self.queues = {(c, k): deque(maxlen=capacity) for c in range(3) for k in range(3)}

    def write(self, classes, points, responsibilities, gained):
        for row, c in enumerate(classes.tolist()):
            for point, share in zip(points[row], responsibilities[row]):
                if share.sum() > 0:
                    self.queues[c, int(share.argmax())].append(point.double())


@pytest.mark.parametrize("capacity", [1, 4, 100])
def test_queue_equals_deques(generator, capacity):
    queue, slow = FeatureQueue(3, 3, 4, capacity=capacity), SlowQueue(capacity)
    for _ in range(12):
        batch = random_batch(generator)
        queue.write(*batch)
        slow.write(*batch)
    weight, total, squares = queue.recall(torch.arange(3))
    for (c, k), held in slow.queues.items():
        stacked = torch.stack(list(held)) if held else torch.zeros(0, 4, dtype=torch.float64)
        assert weight[c, k] == len(held)
        torch.testing.assert_close(total[c, k], stacked.sum(0))
        torch.testing.assert_close(squares[c, k], stacked.square().sum(0))


def test_half_precision_queue_keeps_the_moments_of_what_it_stores(generator):
    queue = FeatureQueue(3, 3, 4, capacity=5, dtype=torch.float16)
    for _ in range(20):
        queue.write(*random_batch(generator))
    stored = queue.slots.double()
    torch.testing.assert_close(queue.recall(torch.arange(3)).total, stored.sum(2))
    torch.testing.assert_close(queue.recall(torch.arange(3)).squares, stored.square().sum(2))


@pytest.mark.parametrize(("scale", "kept"), [(1.0, 0.5), (0.2, 0.9), (0.0, 1.0)])
def test_statistics_are_the_decayed_sums(generator, scale, kept):
    memory = DecayedStatistics(3, 3, 4, decay=0.5)
    first, second = random_batch(generator, hard=False), random_batch(generator, hard=False)
    memory.write(*first)
    memory.fade_(first[0], torch.full((len(first[0]),), scale))
    memory.write(*second)
    classes = first[0]
    expected = kept * first[-1].total + second[-1].total
    torch.testing.assert_close(memory.remembered.total[classes], expected)
    assert (memory.weight()[1] == 0).all(), "a class absent from the batch is not touched"


def test_each_class_forgets_at_its_own_scale(generator):
    memory = DecayedStatistics(3, 3, 4, decay=0.5)
    classes, points, shares, gained = random_batch(generator)
    memory.write(classes, points, shares, gained)
    scales = torch.linspace(0.0, 1.0, len(classes))
    memory.fade_(classes, scales)
    for index, scale in enumerate(scales):
        torch.testing.assert_close(
            memory.remembered.squares[classes[index]], (1 - 0.5 * float(scale)) * gained.squares[index]
        )


@pytest.mark.parametrize(
    "make", [lambda: FeatureQueue(3, 3, 4, capacity=8), lambda: DecayedStatistics(3, 3, 4, decay=0.9)]
)
def test_state_resumes_exactly(generator, make):
    original, copy = make(), make()
    for _ in range(5):
        original.write(*random_batch(generator))
    copy.load_state_dict(original.state_dict())
    batch = random_batch(generator)
    original.write(*batch)
    copy.write(*batch)
    for ours, theirs in zip(original.recall(torch.arange(3)), copy.recall(torch.arange(3))):
        assert torch.equal(ours, theirs)


def test_saved_queue_leaves_out_what_was_never_written(generator):
    queue = FeatureQueue(3, 3, 4, capacity=10_000)
    queue.write(*random_batch(generator))
    assert queue.state_dict()["slots"].shape[2] <= 7
    assert (queue.recall(torch.tensor([1])).weight == 0).all()


def test_forgetting_empties_marked_components(generator):
    for memory in (FeatureQueue(3, 3, 4, capacity=8), DecayedStatistics(3, 3, 4, decay=0.9)):
        memory.write(*random_batch(generator, hard=False))
        marked = torch.zeros(3, 3, dtype=torch.bool)
        marked[0, 1] = True
        memory.forget_(marked)
        weight, total, _ = memory.recall(torch.arange(3))
        assert weight[0, 1] == 0
        assert (total[0, 1] == 0).all()
        assert weight[2].sum() > 0


def test_refusals():
    with pytest.raises(ValueError, match="decay"):
        DecayedStatistics(2, 2, 2, decay=1.0)
    saved = FeatureQueue(2, 2, 2, capacity=4).state_dict()
    with pytest.raises(ValueError, match="memory_size"):
        FeatureQueue(2, 2, 2, capacity=5).load_state_dict(saved)
