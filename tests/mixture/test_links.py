import pytest
import torch

from gmmseg.mixture import AffineLink, BayesLink, ClassNormLink, log_posterior, make_link
from gmmseg.mixture.links import linear_terms, link_of_rows


@pytest.mark.parametrize("name", ["bayes", "class_norm", "affine"])
def test_posterior_sums_to_one_and_gradient_reaches_the_evidence(name):
    evidence = torch.randn(5, 4).requires_grad_()
    logits = make_link(name, 4)(evidence, torch.zeros(4))
    torch.testing.assert_close(logits.softmax(-1).sum(-1), torch.ones(5))
    logits.log_softmax(-1)[:, 0].sum().backward()
    assert evidence.grad.abs().sum() > 0


def test_bayes_link_is_bayes_rule():
    evidence, log_prior = torch.randn(5, 4), torch.rand(4).log()
    torch.testing.assert_close(
        BayesLink()(evidence, log_prior).log_softmax(-1), log_posterior(evidence, log_prior)
    )


def test_affine_link_starts_as_bayes_and_keeps_the_order_of_classes():
    evidence, log_prior = torch.randn(5, 4), torch.zeros(4)
    link = AffineLink(4)
    torch.testing.assert_close(link(evidence, log_prior), evidence)
    link.log_temperature.data.fill_(-3.0)  # any temperature is positive
    assert torch.equal(link(evidence, log_prior).argsort(-1), evidence.argsort(-1))


def test_class_norm_is_blind_to_a_common_shift():
    link, evidence = make_link("class_norm", 4), torch.randn(5, 4)
    torch.testing.assert_close(
        link(evidence + 100, torch.zeros(4)), link(evidence, torch.zeros(4)), atol=1e-3, rtol=1e-3
    )


def test_unknown_link_is_refused():
    with pytest.raises(ValueError, match="bayes, class_norm or affine"):
        make_link("softmax", 3)


def test_a_link_in_linear_terms_gives_its_own_logits(generator):
    evidence, prior = torch.randn(6, 3, generator=generator), torch.randn(3, generator=generator)
    link = AffineLink(3, 0.4)
    with torch.no_grad():
        link.offset.copy_(torch.randn(3, generator=generator))
    for each in (link, BayesLink()):
        terms = linear_terms(each, prior)
        torch.testing.assert_close(terms.temperature * evidence + terms.offsets, each(evidence, prior))


def test_a_link_for_other_classes_keeps_what_it_learned_of_those_that_stay(generator):
    link = AffineLink(3, 0.4)
    with torch.no_grad():
        link.offset.copy_(torch.randn(3, generator=generator))
    evidence, prior = torch.randn(6, 3, generator=generator), torch.randn(3, generator=generator)
    changed = link_of_rows(link, (2, None, 0))
    rows = torch.tensor([2, 1, 0])
    logits = changed(evidence[:, rows], prior[rows])
    assert torch.equal(logits[:, [0, 2]], link(evidence, prior)[:, [2, 0]])
    assert float(changed.offset[1].detach()) == 0


def test_a_norm_over_all_classes_has_no_place_for_another():
    with pytest.raises(ValueError, match=r"class_norm link .* Use a model with the link affine"):
        link_of_rows(ClassNormLink(3), (0, 1))
