import torch

from gmmseg.mixture import log_density
from gmmseg.mixture.class_batch import ClassBatch


def ragged(offset=0.0):
    labels = torch.tensor([0] * 7 + [3] * 12 + [7])
    return ClassBatch(0.1 * torch.randn(20, 4) + offset, labels)


def test_every_point_stands_under_its_class():
    labels, points = torch.tensor([0, 0, 3, 3, 3, 7]), torch.randn(6, 2)
    batch = ClassBatch(points, labels)
    assert batch.classes.tolist() == [0, 3, 7]
    assert batch.points.shape == (3, 3, 2)
    assert torch.equal(batch.points[batch.valid], points)
    torch.testing.assert_close(batch.centre[1, 0], points[2:5].mean(0))


def test_densities_equal_those_under_all_classes():
    batch = ragged()
    means, variances = torch.randn(3, 5, 4), torch.rand(3, 5, 4) + 0.1
    ours = batch.log_density(means, variances)
    everywhere = log_density(batch.points.flatten(0, 1), means, variances).unflatten(0, batch.valid.shape)
    for p in range(3):
        torch.testing.assert_close(ours[p], everywhere[p, :, p], atol=1e-4, rtol=1e-4)


def test_moments_keep_their_digits_far_from_the_origin():
    batch = ragged(offset=300.0)
    responsibilities = torch.rand(3, 12, 5).softmax(-1) * batch.valid[..., None]
    weight, total, squares = batch.moments(responsibilities)
    shares, exact = responsibilities.double(), batch.points.double()
    mean = torch.einsum("pmk,pmd->pkd", shares, exact) / shares.sum(1)[..., None]
    deviations = (exact[:, :, None] - mean[:, None]).square()
    variance = (shares[..., None] * deviations).sum(1) / shares.sum(1)[..., None]
    torch.testing.assert_close(total / weight[..., None], mean, rtol=1e-6, atol=1e-6)
    ours = squares / weight[..., None] - (total / weight[..., None]).square()
    torch.testing.assert_close(ours, variance, rtol=1e-2, atol=1e-6)
