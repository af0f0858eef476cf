import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gmmseg
from gmmseg.inference import windows
from gmmseg.inference.windows import (
    Maps,
    anomaly_map,
    coverage,
    fitting,
    forward,
    in_evaluation_mode,
    rows_at,
    sliding,
    sliding_strips,
    starts,
    upsample,
    whole,
)
from gmmseg.models import SegmenterOutput


class Neighbours(nn.Module):
    """A 3x3 box filter: cells see their neighbours, so windows matter."""

    temperature = 1.0
    align_corners = False
    stride = 1
    num_classes = 3

    def forward(self, images):
        blurred = F.avg_pool2d(images, 3, 1, 1)
        return SegmenterOutput(blurred, blurred, -blurred)


def loop_sliding(read, segmenter, images, window, stride):
    """The definition: every window on its own, sums and counts per pixel, of what is read (b n h w)."""
    b, _, h, w = images.shape
    sums, counts = torch.zeros(b, read(segmenter(images)).shape[1], h, w), torch.zeros(h, w)
    for top in starts(h, window, stride):
        for left in starts(w, window, stride):
            part = (..., slice(top, top + window), slice(left, left + window))
            sums[part] += read(segmenter(images[part]))
            counts[part] += 1
    return sums / counts


@pytest.mark.parametrize(
    ("size", "window", "stride"), [((50, 70), 32, 19), ((32, 90), 32, 32), ((35, 33), 32, 1)]
)
def test_sliding_equals_the_loop_over_windows(generator, size, window, stride):
    images = torch.rand(2, 3, *size, generator=generator)
    maps = sliding(Neighbours(), images, window, stride)
    pieces = Neighbours(), images, window, stride
    torch.testing.assert_close(maps.logits, loop_sliding(lambda output: output.logits, *pieces))
    expected = loop_sliding(lambda output: anomaly_map(output)[:, None], *pieces)
    torch.testing.assert_close(maps.scores, expected)


@pytest.mark.parametrize("size", [(1, 1), (5, 40), (40, 5), (33, 47), (32, 32)])
@pytest.mark.parametrize("generative", [True, False])
def test_a_pointwise_network_gives_the_same_whole_and_sliding(make_segmenter, generator, size, generative):
    segmenter = make_segmenter(generative=generative)
    images = torch.rand(2, 3, *size, generator=generator)
    at_once, windows = whole(segmenter, images), sliding(segmenter, images, 16, 11)
    torch.testing.assert_close(windows.logits, at_once.logits)
    assert windows.logits.shape == (2, 3, *size)
    torch.testing.assert_close(windows.anomaly, at_once.anomaly)


def test_windows_that_do_not_overlap_are_separate_crops(generator):
    images = torch.rand(1, 3, 64, 96, generator=generator)
    maps = sliding(Neighbours(), images, 32, 32)
    for top in (0, 32):
        for left in (0, 32, 64):
            part = (..., slice(top, top + 32), slice(left, left + 32))
            torch.testing.assert_close(maps.logits[part], whole(Neighbours(), images[part]).logits)


def test_strips_are_the_rows_of_the_image_in_order(generator):
    images = torch.rand(1, 3, 50, 20, generator=generator)
    strips = list(sliding_strips(Neighbours(), images, 16, 12))
    assert len(strips) == 4
    joined = torch.cat([strip.logits for strip in strips], 2)
    torch.testing.assert_close(joined, sliding(Neighbours(), images, 16, 12).logits)


def test_every_window_has_the_same_size_even_on_a_small_image(segmenter):
    sliding(segmenter, torch.rand(1, 3, 5, 90), 40, 30)
    assert set(segmenter.sizes) == {(32, 40)}


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (8, 40), (45, 34)])
def test_cells_lie_over_their_pixels_whatever_the_size(make_segmenter, size):
    """On a constant image every pixel gets its colour's evidence, and the network sees whole cells only."""
    segmenter = make_segmenter(stride=4)
    images = torch.tensor([1.0, 0.5, 0.0])[None, :, None, None].expand(1, 3, *size)
    maps = whole(segmenter, images)
    expected = -10 * torch.tensor([0.25, 1.25, 2.25])
    torch.testing.assert_close(maps.anomaly, -expected.amax().expand(1, *size))
    assert all(side % 4 == 0 and side >= 32 for seen in segmenter.sizes for side in seen)


def test_upsampling_does_not_shift_with_odd_sizes(make_segmenter, generator):
    """Cutting columns off the right must not move what is left of them."""
    images = torch.rand(1, 3, 48, 48, generator=generator)
    full = whole(make_segmenter(stride=4), images).logits
    part = whole(make_segmenter(stride=4), images[..., :45]).logits
    torch.testing.assert_close(part[..., :46, :42], full[..., :46, :42])


@pytest.mark.parametrize("size", [(50, 70), (20, 9), (13, 200)])
def test_rows_resized_one_strip_at_a_time_are_the_whole_resized(monkeypatch, generator, size):
    maps = Maps(torch.rand(1, 3, 31, 40, generator=generator), torch.rand(1, 2, 31, 40, generator=generator))
    monkeypatch.setattr(windows, "STRIP_PIXELS", 7 * size[1])
    strips = list(rows_at(maps, size))
    assert len(strips) == -(-size[0] // 7)
    for name in ("logits", "scores"):
        joined = torch.cat([getattr(strip, name) for strip in strips], 2)
        torch.testing.assert_close(joined, upsample(getattr(maps, name), size))


def test_sizes_that_need_padding_repeat():
    assert fitting((480, 640), 4) == (480, 640), "the network sees what the original would"
    assert fitting((5, 8), 4) == (32, 32)
    assert fitting((481, 640), 4) == (512, 640)
    assert fitting((50, 100), 7) == (70, 140), "the next multiple of the stride"
    sizes = {fitting((height, width), 4) for height in range(65, 193, 2) for width in range(65, 193, 2)}
    assert sizes == {(height, width) for height in (128, 192) for width in (128, 192)}


def test_padding_moves_nothing_that_is_far_from_it(generator):
    """Beyond the reach of the border the labels of a real network are those of the unpadded image."""
    torch.manual_seed(0)
    segmenter = gmmseg.build("tiny_unet", num_classes=4, head="softmax").eval()
    images = torch.rand(1, 3, 128, 190, generator=generator)
    padded, smaller = whole(segmenter, images), whole(segmenter, images[..., :128])
    reach = 64
    torch.testing.assert_close(padded.logits[..., :reach], smaller.logits[..., :reach], atol=1e-4, rtol=1e-4)


def test_posterior_sums_to_one_and_softmax_scores_by_max_logit(generator):
    logits, points = torch.randn(2, 5, 3, 4, generator=generator), torch.zeros(2, 1, 3, 4)
    assert torch.equal(anomaly_map(SegmenterOutput(logits, points)), -logits.max(1).values)
    generative = SegmenterOutput(logits, points, evidence=logits * 3)
    assert torch.equal(anomaly_map(generative), -3 * logits.max(1).values)
    posterior = Maps(logits, logits).posterior
    torch.testing.assert_close(posterior.sum(1), torch.ones(2, 3, 4))


def test_labels_are_the_first_of_the_likeliest_classes():
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0]).view(1, 4, 1, 1).expand(1, 4, 3, 5)
    assert (windows.Maps(logits, logits[:, :1]).labels == 1).all()
    logits = torch.randn(2, 7, 6, 5)
    assert torch.equal(windows.Maps(logits, logits[:, :1]).labels, logits.argmax(1))


def test_the_outline_between_two_known_things_is_not_strange(make_segmenter):
    """Left half one class, right half another, both certain: interpolated evidence would fall between."""
    images = torch.zeros(1, 3, 32, 64)
    images[:, 0, :, :32], images[:, 1, :, 32:] = 1.0, 1.0
    maps = whole(make_segmenter(stride=8), images)
    inside = maps.anomaly[0, 16, [4, 60]].max()
    assert bool((maps.anomaly[0, 16] <= inside + 1e-5).all())


def test_readings_are_scores_in_their_order(segmenter, generator):
    images = torch.rand(1, 3, 50, 40, generator=generator)
    readings = (anomaly_map, lambda output: output.logits[:, 0])
    for maps in (whole(segmenter, images, readings=readings), sliding(segmenter, images, 16, 11, readings)):
        torch.testing.assert_close(maps.scores[:, 1], maps.logits[:, 0])
        torch.testing.assert_close(maps.scores[:, 0], whole(segmenter, images).anomaly)


@pytest.mark.parametrize(
    ("length", "window", "stride"), [(10, 10, 3), (11, 10, 3), (31, 10, 7), (30, 10, 10)]
)
def test_windows_cover_everything_and_end_at_the_border(length, window, stride):
    begins = starts(length, window, stride)
    assert begins == sorted(set(begins))
    assert begins[0] == 0
    assert begins[-1] + window == length
    assert coverage(begins, window, length).min() >= 1


@pytest.mark.parametrize("stride", [0, 9, -1])
def test_strides_that_leave_gaps_are_refused(segmenter, stride):
    with pytest.raises(ValueError, match=f"stride {stride} must be between 1 and the window size 8"):
        sliding(segmenter, torch.rand(1, 3, 20, 20), 8, stride)


def test_an_evaluation_copy_shares_weights_and_leaves_modes_alone():
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3).eval(), nn.Conv2d(3, 3, 1))
    twin = in_evaluation_mode(module)
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert not any(part.training for part in twin.modules())
    assert all(a is b for a, b in zip(module.parameters(), twin.parameters()))
    assert all(a is b for a, b in zip(module.buffers(), twin.buffers()))
    assert in_evaluation_mode(twin) is twin


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(value):
    segmenter = gmmseg.build("tiny_unet", num_classes=4, head="softmax")
    with torch.no_grad():
        list(segmenter.head.parameters())[-1].view(-1)[0] = value  # the bias: only its class is spoilt
    with pytest.raises(ValueError, match="NaN"):
        forward(segmenter, torch.rand(1, 3, 32, 32))


def test_scores_may_be_infinite(segmenter):
    endless = whole(segmenter, torch.rand(1, 3, 32, 32), [lambda output: anomaly_map(output) + torch.inf])
    assert endless.scores.isinf().all()
