import pytest
import torch
from torch import Tensor

import gmmseg
from gmmseg import run
from gmmseg.inference import whole
from gmmseg.labels import IGNORE
from gmmseg.models.heads import HeadSettings
from gmmseg.models.huggingface import swin_config, swin_mask2former
from gmmseg.models.mask_matching import mask_labels
from gmmseg.models.masks import MaskSegmenter, one_minus_exp, pixel_evidence, pixel_logits
from gmmseg.models.segmenter import replace_head

CLASSES = 4


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return swin_mask2former(swin_config(8, [1, 1, 1, 1], [1, 2, 2, 4], 4), CLASSES, None).eval()


@pytest.fixture(scope="module")
def segmenter(model: torch.nn.Module) -> MaskSegmenter:
    return gmmseg.convert(model, head=HeadSettings(components=2, dim=8))


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    return torch.rand(2, 3, 64, 64, generator=generator)


def test_the_twin_is_the_original(model: torch.nn.Module, images: Tensor, tmp_path) -> None:
    twin = gmmseg.convert(model, head="softmax")
    with torch.no_grad():
        original, output = model(twin.normalise(images)), twin(images)
    assert torch.equal(output.query_logits[-1], original.class_queries_logits)
    assert torch.equal(output.masks[-1], original.masks_queries_logits)
    assert output.evidence is None
    assert twin.num_classes == CLASSES
    twin.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(gmmseg.from_pretrained(tmp_path)(images).logits, output.logits)


def test_label_map_is_mask2formers(model: torch.nn.Module, images: Tensor) -> None:
    """transformers' own post-processing, at the size of the masks."""
    twin = gmmseg.convert(model, head="softmax")
    with torch.no_grad():
        original, output = model(twin.normalise(images)), twin(images)
    classes = original.class_queries_logits.softmax(-1)[..., :-1]
    scores = torch.einsum("bqc,bqhw->bchw", classes, original.masks_queries_logits.sigmoid())
    assert torch.equal(output.logits.argmax(1), scores.argmax(1))
    torch.testing.assert_close(output.logits.softmax(1), scores / scores.sum(1, keepdim=True))


def test_pixel_evidence_equals_a_loop(generator: torch.Generator) -> None:
    evidence = 10 * torch.randn(1, 3, 3, generator=generator, dtype=torch.float64).float()
    logits, masks = torch.randn(1, 3, 3, generator=generator), torch.randn(1, 3, 2, 2, generator=generator)
    found = pixel_evidence(evidence, logits, masks)
    for h in range(2):
        for w in range(2):
            claims = [masks[0, q, h, w].sigmoid() * (1 - logits[0, q].softmax(0)[-1]) for q in range(3)]
            anyone = 1 - torch.stack([1 - claim for claim in claims]).prod()
            for c in range(2):
                mean = sum(claim * evidence[0, q, c] for q, claim in enumerate(claims)) / sum(claims)
                torch.testing.assert_close(found[0, c, h, w], mean + anyone.log(), rtol=1e-4, atol=1e-4)


def test_what_makes_a_pixel_strange() -> None:
    """Two queries: a known class on the left, one like nothing on the right; nobody wants the middle."""
    evidence = torch.tensor([[[20.0, -30.0, -30.0], [-80.0, -90.0, -85.0]]])
    logits = torch.tensor([[[9.0, 0.0, 0.0], [5.0, 0.0, 0.0]]])
    masks = torch.full((1, 2, 1, 3), -12.0)
    masks[0, 0, 0, 0], masks[0, 1, 0, 2] = 12.0, 12.0
    left, middle, right = pixel_evidence(evidence, logits, masks)[0, :, 0].amax(0)
    assert left == pytest.approx(20.0, abs=0.1)
    assert right == pytest.approx(-80.0, abs=0.1)  # the familiar query elsewhere does not vouch for it
    assert middle < left - 8


def test_no_pixel_is_infinitely_strange() -> None:
    masks = torch.full((1, 2, 1, 1), -1e4)
    assert pixel_evidence(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), masks).isfinite().all()
    assert pixel_evidence(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), -masks).isfinite().all()
    assert pixel_logits(torch.zeros(1, 2, 3), masks).isfinite().all()


def test_losses_are_mask2formers_own(model: torch.nn.Module, images: Tensor) -> None:
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    labels[:, 20:, 10:] = 3
    twin = gmmseg.convert(model, head="softmax").train()
    torch.manual_seed(3)
    output = twin(images)
    torch.manual_seed(4)
    ours = sum(twin.losses(output, labels).values())
    masks, classes = mask_labels(labels)
    model.train()
    torch.manual_seed(3)
    original = model(twin.normalise(images), mask_labels=None, output_auxiliary_logits=True)
    torch.manual_seed(4)
    theirs = model.get_loss(
        model.get_loss_dict(
            original.masks_queries_logits,
            original.class_queries_logits,
            masks,
            classes,
            original.auxiliary_logits,
        )
    )
    model.eval()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_all_ignored_batch_costs_nothing(segmenter: MaskSegmenter, images: Tensor) -> None:
    terms = segmenter.losses(segmenter(images), torch.full((2, 64, 64), IGNORE))
    assert all(term == 0 for term in terms.values())


def test_another_number_of_classes(model: torch.nn.Module, images: Tensor) -> None:
    segmenter = gmmseg.convert(model, head="default", num_classes=7)
    assert segmenter.num_classes == 7
    assert segmenter.mixture.num_classes == 8
    labels = torch.full((2, 64, 64), 6)
    output = segmenter.train()(images)
    assert output.logits.shape[1] == 7
    assert segmenter.losses(output, labels)["posterior"].isfinite()
    segmenter.eval()


def test_scores_are_maps_of_pixels_or_refused(segmenter: MaskSegmenter, images: Tensor) -> None:
    """The components of its mixtures are of queries, which are no map."""
    suitable = run.make_scores(segmenter)
    assert [score.name for score in suitable] == ["nll", "msp", "entropy"]
    assert whole(segmenter, images, readings=suitable).scores.shape == (2, 3, 64, 64)
    for name in ("nll_winner", "nll_logsumexp", "mahalanobis", "knn"):
        with pytest.raises(ValueError, match=rf"{name}: it reads the point of each cell.*are queries"):
            whole(segmenter, images, readings=run.make_scores(segmenter, [name]))


def test_scores_of_points_are_not_fitted_on_queries(segmenter: MaskSegmenter, images: Tensor) -> None:
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    with torch.no_grad():
        output = segmenter(images)
    for score in run.make_scores(segmenter, ["mahalanobis", "knn"]):
        with pytest.raises(ValueError, match=rf"{score.name}: .*points are not its cells"):
            score.fit([(output, labels)])


def test_the_head_stays_on_its_matching(segmenter: MaskSegmenter) -> None:
    with pytest.raises(ValueError, match=r"MaskSegmenter is part of its matching.*: convert"):
        replace_head(segmenter, HeadSettings())


@pytest.mark.parametrize("blank", [False, True])
def test_images_one_by_one_cost_what_the_batch_does_when_weighed_by_their_labels(
    segmenter: MaskSegmenter,
    images: Tensor,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
    blank: bool,
) -> None:
    """But for the mask and dice terms, which Mask2Former takes at random points; so does its matching.

    An image without any label says nothing, with others or alone, and has all terms for all that.
    """

    def in_order(*given):
        return [(torch.arange(len(classes)), torch.arange(len(classes))) for classes in given[-1]]

    monkeypatch.setattr(type(segmenter.criterion.matcher), "forward", in_order)
    labels = torch.randint(0, CLASSES, (2, 64, 64), generator=generator)
    labels[0, :, 32:], labels[1] = IGNORE, IGNORE if blank else 1
    extra = ("component", "likelihood")
    with torch.no_grad():
        together = segmenter.losses(segmenter(images), labels, extra)
        parts = [
            segmenter.losses(segmenter(image), own, extra)
            for image, own in zip(images.split(1), labels.split(1))
        ]
    counts, *shares = (segmenter.label_counts(each) for each in (labels, *labels.split(1)))
    assert counts["mask"] == counts["dice"] == CLASSES + (not blank)
    assert all(part.keys() == together.keys() for part in parts), "all processes must go the same way"
    for name in ("posterior", *extra):
        summed = sum(float(part[name]) * share[name] / counts[name] for part, share in zip(parts, shares))
        assert summed == pytest.approx(float(together[name]), rel=1e-4), name


def test_pixel_maths_is_float32_under_autocast(generator: torch.Generator) -> None:
    evidence = -60 + 10 * torch.randn(1, 5, 4, generator=generator)
    logits, masks = torch.randn(1, 5, 4, generator=generator), torch.randn(1, 5, 8, 8, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        under = pixel_evidence(evidence, logits, masks), pixel_logits(logits, masks)
    for found, expected in zip(under, (pixel_evidence(evidence, logits, masks), pixel_logits(logits, masks))):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("head", ["gmm", "softmax"])
def test_half_precision_ends_with_the_network(model: torch.nn.Module, generator, head: str) -> None:
    """Forward under autocast, losses and EM outside of it, as a training loop may have it."""
    segmenter = gmmseg.convert(model, head=HeadSettings(kind=head, components=2, dim=8)).train()
    images = torch.rand(1, 3, 32, 32, generator=generator)
    labels = torch.zeros(1, 32, 32, dtype=torch.int64)
    labels[:, 16:] = 2
    with torch.autocast("cpu", torch.bfloat16):
        output = segmenter(images)
        inside = segmenter.losses(output, labels, ("component", "likelihood"))
        segmenter.em_points(output, labels)
    outside = segmenter.losses(output, labels, ("component", "likelihood"))
    for terms in (inside, outside):
        assert all(bool(term.isfinite()) for term in terms.values())
    sum(outside.values()).backward()
    maps = [output.logits, output.queries.points, *output.query_logits, *output.masks]
    maps += [] if output.evidence is None else [output.evidence]
    assert {each.dtype for each in maps} == {torch.float32}
    points, classes, *_ = segmenter.em_points(output, labels)
    assert points.dtype == torch.float32
    assert set(classes.tolist()) == {0, 2, CLASSES}
    segmenter.zero_grad()
    segmenter.eval()


def test_no_query_looks_for_another_class(segmenter: MaskSegmenter) -> None:
    with pytest.raises(ValueError, match="MaskSegmenter finds objects by queries"):
        segmenter.with_class("cone", torch.zeros(3, 8))


def testone_minus_exp_is_exact_near_zero_and_far_from_it():
    logs = -torch.logspace(-8, 3, 200)
    exact = -torch.expm1(logs.double())
    assert torch.allclose(one_minus_exp(logs).double(), exact, rtol=5e-7, atol=0)
