import numpy as np
import ot
import pytest
import torch

from gmmseg.mixture import balanced_assignment, plain_assignment


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 5.0])
def test_equals_the_plan_of_POT(epsilon):
    log_densities = torch.randn(1, 40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, columns = np.full(40, 1 / 40), np.full(5, 1 / 5)
    cost = -log_densities[0].numpy()
    plan = ot.sinkhorn(rows, columns, cost, epsilon, method="sinkhorn_log", numItermax=20_000, stopThr=1e-12)
    ours = balanced_assignment(log_densities, epsilon=epsilon, iterations=2000)
    torch.testing.assert_close(ours[0].double(), torch.from_numpy(plan) * 40, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_to_a_tolerance_it_equals_the_plan_of_POT(epsilon):
    log_densities = 3 * torch.randn(1, 40, 5, generator=torch.Generator().manual_seed(3))
    rows, columns = np.full(40, 1 / 40), np.full(5, 1 / 5)
    cost = -log_densities[0].double().numpy()
    plan = ot.sinkhorn(rows, columns, cost, epsilon, method="sinkhorn_log", numItermax=100_000, stopThr=1e-12)
    ours = balanced_assignment(log_densities, epsilon=epsilon, tolerance=1e-5, iterations=500)
    torch.testing.assert_close(ours[0].double(), torch.from_numpy(plan) * 40, atol=2e-3, rtol=1e-2)


def uneven_clusters(scale):
    """Log densities (6 400 5) of points in clusters of very different sizes, under fitted components."""
    generator = torch.Generator().manual_seed(5)
    centres = torch.randn(6, 5, 32, generator=generator)
    which = torch.multinomial(
        torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]), 2400, replacement=True, generator=generator
    ).view(6, 400)
    points = torch.gather(centres, 1, which[..., None].expand(-1, -1, 32))
    points = points + 0.5 * torch.randn(6, 400, 32, generator=generator)
    return -0.5 * torch.cdist(points, centres).square() * scale


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0, 400.0])
def test_raw_densities_are_balanced_to_the_tolerance(scale):
    """The paper's epsilon on raw log densities: shares stay even however far apart clusters are."""
    log_densities = uneven_clusters(scale)
    shares = balanced_assignment(log_densities, tolerance=0.01, iterations=50).sum(1) / (400 / 5)
    assert (shares - 1).abs().max() <= 0.01
    few_rounds = balanced_assignment(log_densities, iterations=10).sum(1) / (400 / 5)
    if scale >= 1:
        assert (few_rounds - 1).abs().max() > 0.5, "ten rounds of Sinkhorn do not balance these"


def test_without_centring_it_is_sinkhorn_in_the_probability_domain():
    """Oracle: three rounds on exp(v / 0.05), components first, as the reference code does them."""
    log_densities = 10 * torch.randn(1, 60, 5, generator=torch.Generator().manual_seed(4)) - 40
    plan = (log_densities[0].double() / log_densities.abs().max() / 0.05).exp()
    plan = plan / plan.sum()
    for _ in range(3):
        plan = plan / plan.sum(0) / 5
        plan = plan / plan.sum(1, keepdim=True) / 60
    ours = balanced_assignment(log_densities, iterations=3, scale_cost=True, centre_cost=False)
    torch.testing.assert_close(ours[0].double(), plan * 60, atol=1e-5, rtol=1e-4)


def ragged_batch():
    log_densities = torch.randn(4, 30, 3) * 5
    valid = torch.arange(30) < torch.tensor([30, 7, 1, 0])[:, None]
    return log_densities.masked_fill(~valid[..., None], 1e6), valid


def test_rows_sum_to_one_and_columns_to_an_even_share():
    log_densities, valid = ragged_batch()
    plan = balanced_assignment(log_densities, valid, epsilon=1.0, iterations=300)
    torch.testing.assert_close(plan.sum(-1), valid.float())
    torch.testing.assert_close(plan.sum(1), (valid.sum(1) / 3)[:, None].expand(-1, 3), atol=1e-3, rtol=1e-3)


def test_a_batch_of_ragged_classes_equals_each_class_alone():
    log_densities, valid = ragged_batch()
    together = balanced_assignment(log_densities, valid)
    for index, count in enumerate(valid.sum(1)[:3]):
        alone = balanced_assignment(log_densities[index : index + 1, :count])
        torch.testing.assert_close(together[index, :count], alone[0])


def test_permuting_components_permutes_the_plan():
    log_densities, order = torch.randn(2, 20, 4), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        balanced_assignment(log_densities)[..., order], balanced_assignment(log_densities[..., order])
    )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("scale_cost", [True, False])
@pytest.mark.parametrize("tolerance", [None, 0.01])
def test_finite_for_any_finite_input(scale, hard, scale_cost, tolerance):
    plan = balanced_assignment(
        torch.randn(2, 50, 5) * scale, hard=hard, scale_cost=scale_cost, tolerance=tolerance
    )
    assert plan.isfinite().all()
    torch.testing.assert_close(plan.sum(-1), torch.ones(2, 50))


def test_raw_densities_at_a_small_epsilon_do_not_all_go_to_the_first_component():
    """In the probability domain exp(-900/0.05) underflows and every point lands in component 0."""
    plan = balanced_assignment(torch.randn(1, 100, 5) * 30 - 900, epsilon=0.05, iterations=50)
    assert plan.sum(1).max() < 30


def test_hard_is_the_largest_share():
    log_densities = torch.randn(3, 40, 5)
    soft, hard = balanced_assignment(log_densities), balanced_assignment(log_densities, hard=True)
    assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    assert set(hard.unique().tolist()) == {0.0, 1.0}


def test_a_single_point_goes_to_its_likeliest_component():
    log_densities = torch.tensor([[[-5.0, -1.0, -9.0]]])
    assert balanced_assignment(log_densities, hard=True).argmax(-1).item() == 1
    assert plain_assignment(log_densities, hard=True).argmax(-1).item() == 1


def test_scaled_cost_ignores_the_scale_of_the_densities():
    log_densities = torch.randn(1, 30, 4)
    torch.testing.assert_close(
        balanced_assignment(log_densities, scale_cost=True),
        balanced_assignment(1000 * log_densities, scale_cost=True),
    )


def test_plain_assignment_is_a_softmax():
    log_densities, valid = ragged_batch()
    expected = log_densities.softmax(-1) * valid[..., None]
    torch.testing.assert_close(plain_assignment(log_densities, valid), expected)


def test_refuses_densities_without_a_class_axis():
    with pytest.raises(ValueError, match="c m k"):
        balanced_assignment(torch.randn(10, 5))
