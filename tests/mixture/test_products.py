import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from gmmseg.mixture import products
from gmmseg.mixture.blocks import mixture_evidence
from gmmseg.mixture.products import Factor, RowProduct, product


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("n", "f", "o"), [(0, 3, 2), (1, 1, 1), (7, 1, 5), (7, 5, 1), (1, 3, 2), (300, 128, 95)]
)
def test_equals_a_linear_layer_and_so_do_its_gradients(n, f, o, bias):
    rows, matrix = torch.randn(n, f), torch.randn(o, f)
    shift = torch.randn(o) if bias else None
    upstream = torch.randn(n, o)
    results = []
    for way in (product, F.linear):
        given = [each.clone().requires_grad_() for each in (rows, matrix, shift) if each is not None]
        made = way(*given)
        assert made.shape == (n, o)
        results.append((made, *torch.autograd.grad(made, given, upstream)))
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize(("o", "f", "n"), [(1, 1, 1), (5, 7, 1), (95, 129, 300), (4, 3, 0)])
def test_points_in_columns_give_the_product_of_the_definition_on_either_way(monkeypatch, intel, o, f, n):
    monkeypatch.setattr(products, "_made_by_intel", lambda: intel)
    matrix, columns = torch.randn(o, f), torch.randn(f, n)
    expected = (matrix.double() @ columns.double()).float()
    for given in (columns, columns.T.contiguous().T):
        torch.testing.assert_close(Factor(matrix).times(given), expected, atol=1e-4, rtol=1e-4)
        place = torch.full((o, n), torch.nan)
        torch.testing.assert_close(Factor(matrix).times(given, place), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("intel", [True, False])
def test_a_factor_multiplies_blocks_of_every_length_alike(monkeypatch, intel):
    monkeypatch.setattr(products, "_made_by_intel", lambda: intel)
    matrix, columns = torch.randn(95, 129), torch.randn(129, 700)
    factor = Factor(matrix)
    made = torch.cat([factor.times(block) for block in columns.split(256, dim=1)], dim=1)
    torch.testing.assert_close(made, matrix @ columns, atol=1e-4, rtol=1e-4)


def test_rows_need_not_lie_one_after_the_other():
    rows, matrix = torch.randn(6, 40).T, torch.randn(4, 6)
    torch.testing.assert_close(product(rows, matrix), F.linear(rows, matrix))
    every_other = torch.randn(40, 12)[:, ::2]
    torch.testing.assert_close(product(every_other, matrix), F.linear(every_other, matrix))


def test_a_row_is_the_same_whatever_rows_are_beside_it():
    rows, matrix, shift = torch.randn(1000, 128), torch.randn(95, 128), torch.randn(95)
    torch.testing.assert_close(product(rows, matrix, shift)[37:41], product(rows[37:41], matrix, shift))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_stay_what_they_are(dtype):
    rows, matrix = torch.randn(20, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    made = product(rows, matrix)
    assert made.dtype == dtype
    assert torch.equal(made, F.linear(rows, matrix))


def test_autocast_reaches_it_as_it_does_a_linear_layer():
    rows, matrix = torch.randn(20, 6), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert product(rows, matrix).dtype == torch.bfloat16


def test_the_layer_has_the_weights_of_a_linear_layer():
    theirs = nn.Linear(6, 4)
    ours = RowProduct(6, 4)
    ours.load_state_dict(theirs.state_dict())
    for rows in (torch.randn(9, 6), torch.randn(6), torch.randn(2, 3, 6)):
        torch.testing.assert_close(ours(rows), theirs(rows))


def test_compiles_for_any_number_of_rows():
    matrix = torch.randn(4, 6)
    compiled = torch.compile(product, backend="eager", fullgraph=True, dynamic=True)
    for n in (1, 5, 8):
        rows = torch.randn(n, 6)
        torch.testing.assert_close(compiled(rows, matrix), F.linear(rows, matrix))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_reach_the_quicker_library_and_those_who_switch_it_off_are_obeyed(threads):
    before, rows, matrix = torch.get_num_threads(), torch.randn(2000, 32), torch.randn(8, 32)
    try:
        torch.set_num_threads(threads)
        assert "aten::mkldnn_convolution" in operators(lambda: product(rows, matrix))
        with torch.backends.mkldnn.flags(enabled=False):
            assert "aten::convolution" not in operators(lambda: product(rows, matrix))
    finally:
        torch.set_num_threads(before)


def operators(action):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        action()
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("winner", [True, False])
def test_who_counts_operations_or_tries_shapes_meets_products_that_torch_knows(winner):
    n, c, k, d = 50, 4, 3, 8
    points, means, variances = torch.randn(n, d), torch.randn(c, k, d), torch.ones(c, k, d)
    weights = torch.zeros(c, k)
    with FlopCounterMode(display=False) as counter:
        mixture_evidence(points, means, variances, weights, winner=winner)
    assert counter.get_total_flops() == 2 * n * c * k * (2 * d + 1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(each) for each in (points, means, variances, weights)]
        assert mixture_evidence(*fake, winner=winner).shape == (n, c)
