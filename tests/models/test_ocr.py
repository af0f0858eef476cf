import torch

from gmmseg.models.ocr import ObjectAttention, region_descriptions


def test_regions_are_means_weighted_by_the_coarse_segmentation(generator: torch.Generator) -> None:
    pixels = torch.randn(1, 4, 2, 3, generator=generator)
    logits = torch.randn(1, 5, 2, 3, generator=generator)
    found = region_descriptions(pixels, logits)
    assert found.shape == (1, 4, 5, 1)
    for c in range(5):
        weights = logits[0, c].flatten().softmax(0)
        expected = sum(weight * pixels[0, :, n // 3, n % 3] for n, weight in enumerate(weights))
        torch.testing.assert_close(found[0, :, c, 0], expected)


def test_attention_equals_a_loop_over_pixels(generator: torch.Generator) -> None:
    attention = ObjectAttention(4, 2).eval()
    pixels, regions = (
        torch.randn(1, 4, 2, 3, generator=generator),
        torch.randn(1, 4, 5, 1, generator=generator),
    )
    with torch.no_grad():
        found = attention(pixels, regions)
        queries, keys, values = attention.query(pixels), attention.key(regions), attention.value(regions)
        context = torch.zeros(1, 2, 2, 3)
        for h in range(2):
            for w in range(3):
                scores = torch.stack([queries[0, :, h, w] @ keys[0, :, c, 0] / 2**0.5 for c in range(5)])
                context[0, :, h, w] = values[0, :, :, 0] @ scores.softmax(0)
        expected = attention.fuse(torch.cat([attention.restore(context), pixels], dim=1))
    torch.testing.assert_close(found, expected)


def test_order_of_classes_does_not_matter(generator: torch.Generator) -> None:
    attention = ObjectAttention(4, 2).eval()
    pixels, regions = (
        torch.randn(1, 4, 2, 3, generator=generator),
        torch.randn(1, 4, 5, 1, generator=generator),
    )
    with torch.no_grad():
        torch.testing.assert_close(attention(pixels, regions), attention(pixels, regions.flip(2)))
