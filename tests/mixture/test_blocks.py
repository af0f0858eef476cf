import pytest
import torch

from gmmseg.mixture import ClassMixture, DiscriminativeMixture, products


@pytest.fixture(params=["Intel's", "another's"])
def processor(request, monkeypatch):
    """Whose it is decides which library makes products, and in which order they lie in memory."""
    monkeypatch.setattr(products, "_made_by_intel", lambda: request.param == "Intel's")


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("winner", [True, False])
@pytest.mark.parametrize(("n", "c", "k"), [(1, 1, 1), (500, 4, 3), (3000, 150, 5)])
def test_evidence_equals_that_of_all_densities_and_so_does_its_gradient(n, c, k, winner):
    mixture = ClassMixture(c, k, 16, winner=winner)
    mixture.means.normal_()
    mixture.variances.uniform_(0.5, 2.0)
    mixture.log_weights.uniform_(-2.0, 0.0)
    blocks = (torch.randn(n, 16) + 3).requires_grad_()
    plain = blocks.detach().clone().requires_grad_()
    upstream = torch.randn(n, c)
    ours, expected = mixture(blocks), mixture.evidence(mixture.log_density(plain))
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mixture(blocks.detach()), expected, atol=1e-4, rtol=1e-4)
    ours.backward(upstream)
    expected.backward(upstream)
    # Where two components tie to the last digit, either may win.
    differs = ~torch.isclose(blocks.grad, plain.grad, atol=1e-3, rtol=1e-3).all(-1)
    assert differs.float().mean() < 1e-2


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize(("n", "c", "k"), [(1, 1, 1), (500, 4, 3), (3000, 150, 5)])
def test_total_equals_the_sum_of_all_densities_and_so_does_its_gradient(n, c, k):
    mixture = ClassMixture(c, k, 16)
    mixture.means.normal_()
    mixture.variances.uniform_(0.5, 2.0)
    points = (torch.randn(n, 16) + 3).requires_grad_()
    plain = points.detach().clone().requires_grad_()
    upstream = torch.randn(n)
    ours = mixture.total(points)
    expected = (mixture.log_density(plain) + mixture.log_weights).logsumexp((1, 2))
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    ours.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(points.grad, plain.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("winner", [True, False])
def test_components_thousands_of_nats_apart_are_as_exact_as_close_ones(winner):
    """Where exp of a difference is zero, or smaller than any normal number."""
    mixture = ClassMixture(6, 4, 8, winner=winner)
    mixture.means.normal_()
    mixture.variances.copy_(torch.logspace(-4, 0, 6)[:, None, None].expand(6, 4, 8))
    points = torch.randn(40, 8).requires_grad_()
    exact = points.detach().double().requires_grad_()
    components = torch.distributions.Normal(mixture.means.double(), mixture.variances.double().sqrt())
    densities = components.log_prob(exact[:, None, None]).sum(-1) + mixture.log_weights.double()
    assert (densities.amax(-1, keepdim=True) - densities).max() > 10_000
    expected = densities.amax(-1) if winner else densities.logsumexp(-1)
    found, total = mixture(points), mixture.total(points)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(total.double(), densities.logsumexp((1, 2)), rtol=1e-5, atol=1e-3)
    (found.sum() + total.sum()).backward()
    (expected.sum() + densities.logsumexp((1, 2)).sum()).backward()
    torch.testing.assert_close(points.grad.double(), exact.grad, rtol=1e-3, atol=1e-2)


def test_gradients_that_are_handed_in_stay_as_they_are():
    for n, c in ((1, 1), (1, 3), (5, 1), (5, 3)):
        mixture = ClassMixture(c, 2, 4, winner=False)
        upstream = torch.randn(n, c)
        before = upstream.clone()
        mixture(torch.randn(n, 4, requires_grad=True)).backward(upstream)
        assert torch.equal(upstream, before)


def test_is_float32_under_autocast():
    mixture, points = ClassMixture(3, 2, 4), torch.randn(10, 4)
    with torch.autocast("cpu", torch.bfloat16):
        inside = mixture(points)
    assert torch.equal(inside, mixture(points))


def test_a_discriminative_mixture_still_gets_its_gradient():
    mixture = DiscriminativeMixture(3, 2, 4)
    (mixture(torch.randn(5, 4)).sum() + mixture.total(torch.randn(5, 4)).sum()).backward()
    assert mixture.means.grad is not None


def test_tied_components_share_one_gradient():
    mixture = ClassMixture(2, 3, 4)
    mixture.means[:] = mixture.means[:, :1]
    points = torch.randn(5, 4, requires_grad=True)
    mixture(points).sum().backward()
    one = ClassMixture(2, 1, 4)
    one.means.copy_(mixture.means[:, :1])
    alone = points.detach().clone().requires_grad_()
    one(alone).sum().backward()
    torch.testing.assert_close(points.grad, alone.grad)


@pytest.mark.parametrize("winner", [True, False])
def test_the_backward_pass_is_float32_under_autocast(winner):
    mixture = ClassMixture(3, 2, 4, winner=winner)
    inside, outside = (torch.linspace(-1, 1, 40).view(10, 4).requires_grad_() for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16):
        (mixture(inside).sum() + mixture.total(inside).sum()).backward()
    (mixture(outside).sum() + mixture.total(outside).sum()).backward()
    torch.testing.assert_close(inside.grad, outside.grad)


def test_a_backward_pass_keeps_what_components_add_to_their_classes_and_no_more():
    n, c, k, d = 50, 7, 5, 4
    mixture, points = ClassMixture(c, k, d), torch.randn(n, d, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        mixture(points)
        parts, totals, weight = n * k * c, n * c, k * c * 2 * d
        assert sum(each.numel() for each in kept) == parts + totals + weight + points.numel() + d
        kept.clear()
        mixture(points.detach())
    assert not kept


@pytest.mark.parametrize("winner", [True, False])
def test_the_number_of_threads_may_change_before_the_backward_pass(winner):
    mixture, threads = ClassMixture(150, 5, 8, winner=winner), torch.get_num_threads()
    gradients = []
    try:
        for before, after in ((1, 1), (1, 2), (2, 1)):
            points = torch.linspace(-1, 1, 32_000).view(4000, 8).requires_grad_()
            torch.set_num_threads(before)
            evidence = mixture(points)
            torch.set_num_threads(after)
            evidence.sum().backward()
            gradients.append(points.grad)
    finally:
        torch.set_num_threads(threads)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-3, rtol=1e-3)
