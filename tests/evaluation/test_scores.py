from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.covariance import EmpiricalCovariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from gmmseg.evaluation import scores
from gmmseg.labels import IGNORE


def output(seed: int = 0, classes: int = 3, generative: bool = True) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    densities = torch.randn(2, classes, 4, 5, 6, generator=generator)
    return SimpleNamespace(
        logits=torch.randn(2, classes, 5, 6, generator=generator) * 3,
        points=torch.randn(2, 8, 5, 6, generator=generator),
        evidence=densities.amax(2) if generative else None,
        log_densities=densities if generative else None,
    )


def labels(seed: int = 0, classes: int = 3) -> torch.Tensor:
    """(b 2h 2w), every second pixel repeated, so that any nearest sampling of it agrees."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(classes, (2, 5, 6), generator=generator)
    small[0, 0, 0] = IGNORE
    return small.repeat_interleave(2, 1).repeat_interleave(2, 2)


def test_softmax_scores_equal_numpy() -> None:
    out = output()
    p = torch.softmax(out.logits, 1).numpy()
    np.testing.assert_allclose(scores.MSP()(out), -p.max(1), rtol=1e-5)
    np.testing.assert_allclose(scores.Entropy()(out), stats.entropy(p, axis=1), rtol=1e-4)
    np.testing.assert_allclose(scores.MaxLogit()(out), -out.logits.numpy().max(1))
    np.testing.assert_allclose(scores.Energy()(out), -np.log(np.exp(out.logits.numpy()).sum(1)), rtol=1e-4)


def test_standardised_max_logit_has_mean_zero_and_deviation_one_in_every_predicted_class() -> None:
    batches = [(output(seed), labels(seed)) for seed in range(5)]
    score = scores.StandardisedMaxLogit()
    score.fit(iter(batches))
    values = torch.cat([score(out).flatten() for out, _ in batches])
    guesses = torch.cat([out.logits.argmax(1).flatten() for out, _ in batches])
    for c in range(3):
        assert float(values[guesses == c].mean()) == pytest.approx(0, abs=1e-4)
        assert float(values[guesses == c].std(correction=0)) == pytest.approx(1, abs=1e-3)


def test_a_class_never_predicted_in_training_gets_the_pooled_statistics() -> None:
    out = output()
    out.logits[:, 2] = -100
    score = scores.StandardisedMaxLogit()
    score.fit([(out, labels())])
    assert float(score.means[2]) == pytest.approx(float(out.logits.amax(1).mean()), rel=1e-5)


def test_mahalanobis_equals_scikit_learn() -> None:
    batches = [(output(seed), labels(seed)) for seed in range(4)]
    score = scores.Mahalanobis()
    score.fit(batches)
    pairs = [scores.labelled_points(out.points, known) for out, known in batches]
    points, true = (np.concatenate([pair[i].numpy() for pair in pairs]) for i in (0, 1))
    means = np.stack([points[true == c].mean(0) for c in range(3)])
    shared = EmpiricalCovariance(assume_centered=True).fit(points - means[true])
    test = output(9)
    flat = test.points.movedim(1, -1).reshape(-1, 8).numpy()
    expected = np.min([shared.mahalanobis(flat - mean) for mean in means], axis=0)
    np.testing.assert_allclose(score(test).flatten(), expected, rtol=1e-3)


def test_mahalanobis_of_points_close_together_far_from_the_origin() -> None:
    """Oracle: the same in double precision; float32 would leave a handful of distinct scores."""

    def far(seed: int) -> SimpleNamespace:
        each = output(seed)
        return SimpleNamespace(**{**vars(each), "points": 50 + 1e-3 * each.points.double()})

    batches = [(far(seed), labels(seed)) for seed in range(4)]
    score, near = scores.Mahalanobis(), scores.Mahalanobis()
    score.fit(batches)
    near.fit([(output(seed), labels(seed)) for seed in range(4)])
    found = score(SimpleNamespace(points=far(9).points))
    torch.testing.assert_close(found, near(output(9)), rtol=1e-2, atol=1e-2)
    single = score(SimpleNamespace(points=far(9).points.float()))
    torch.testing.assert_close(single, found, rtol=0.1, atol=0.1)


def test_the_virtual_logit_is_that_of_scikit_learns_principal_components() -> None:
    batches = [(output(seed, generative=False), labels(seed)) for seed in range(4)]
    score = scores.VirtualLogit()
    score.fit(batches)
    pairs = [scores.labelled_points(out.points, known) for out, known in batches]
    points = np.concatenate([pair[0].numpy() for pair in pairs])
    tops = [scores.labelled_points(out.logits.amax(1, keepdim=True), known)[0] for out, known in batches]
    components = PCA(4).fit(points)

    def left(rows: np.ndarray) -> np.ndarray:
        return np.linalg.norm(rows - components.inverse_transform(components.transform(rows)), axis=1)

    test = output(9, generative=False)
    flat = test.points.movedim(1, -1).reshape(-1, 8).numpy()
    scale = float(torch.cat(tops).mean()) / np.sqrt((left(points) ** 2).mean())
    expected = scale * left(flat) + scores.Energy()(test).flatten().numpy()
    np.testing.assert_allclose(score(test).flatten(), expected, rtol=1e-4, atol=1e-4)


def test_the_virtual_logit_is_for_softmax_heads() -> None:
    with pytest.raises(ValueError, match=r"vim: .*for a GMM model use nll, or fused"):
        scores.VirtualLogit().fit([(output(), labels())])


def test_nearest_neighbours_equals_scikit_learn_and_draws_evenly() -> None:
    batches = [(output(seed), labels(seed)) for seed in range(4)]
    score = scores.NearestNeighbours(3, bank_size=10_000)
    score.fit(batches)
    points = torch.cat([scores.labelled_points(out.points, known)[0] for out, known in batches]).numpy()
    test = output(9)
    flat = test.points.movedim(1, -1).reshape(-1, 8).numpy()
    expected = NearestNeighbors(n_neighbors=3).fit(points).kneighbors(flat)[0][:, -1]
    np.testing.assert_allclose(score(test).flatten(), expected, rtol=1e-4)
    small = scores.NearestNeighbours(bank_size=50)
    small.fit(batches)
    rows = {tuple(row) for row in points}
    assert len(small.bank) == 50
    assert all(tuple(row) in rows for row in small.bank.numpy())


def test_likelihood_scores() -> None:
    out = output()
    densities = out.log_densities
    np.testing.assert_allclose(scores.NegativeLogLikelihood()(out), -out.evidence.amax(1))
    winner = -(densities.amax(2) - np.log(4)).amax(1)
    np.testing.assert_allclose(scores.WinnerLikelihood()(out), winner, rtol=1e-5, atol=1e-6)
    weights = torch.randn(3, 4).log_softmax(1)
    mixture = -(densities + weights[None, :, :, None, None]).logsumexp(2).amax(1)
    np.testing.assert_allclose(scores.MixtureLikelihood(weights)(out), mixture, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores.LinkedLikelihood()(out), -out.logits.amax(1))
    chosen = out.evidence.gather(1, out.logits.argmax(1)[:, None])[:, 0]
    np.testing.assert_allclose(scores.PredictedClassLikelihood()(out), -chosen)


def test_typicality_is_the_surprise_expected_over_the_posterior() -> None:
    out, typical = output(), np.array([-3.0, 1.0, 0.5])
    p = np.exp(out.logits.numpy()) / np.exp(out.logits.numpy()).sum(1, keepdims=True)
    expected = (p * (typical[:, None, None] - out.evidence.numpy())).sum(1)
    np.testing.assert_allclose(scores.Typicality(typical.tolist())(out), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="gmmseg calibrate"):
        scores.Typicality(None)


def test_the_unseen_is_stranger_than_the_seen() -> None:
    batches = [(output(seed), labels(seed)) for seed in range(4)]
    far = output(9)
    far.points = far.points + 20
    for score in (scores.Mahalanobis(), scores.NearestNeighbours()):
        score.fit(batches)
        assert float(score(far).min()) > float(score(output(9)).max())


def test_names_are_distinct_and_shapes_are_maps() -> None:
    plain = [
        scores.MSP(),
        scores.Entropy(),
        scores.MaxLogit(),
        scores.Energy(),
        scores.NegativeLogLikelihood(),
    ]
    plain += [scores.WinnerLikelihood(), scores.MixtureLikelihood(), scores.LinkedLikelihood()]
    plain += [scores.PredictedClassLikelihood(), scores.Typicality([0.0, 1.0, 2.0])]
    fitted = [scores.StandardisedMaxLogit(), scores.Mahalanobis(), scores.NearestNeighbours()]
    for score in fitted:
        with pytest.raises(ValueError, match=rf"{score.name}: call fit"):
            score(output())
        with pytest.raises(ValueError, match=rf"{score.name}: fit has seen no"):
            score.fit([])
        score.fit([(output(), labels())])
    assert len({score.name for score in plain + fitted}) == 13
    assert {tuple(score(output()).shape) for score in plain + fitted} == {(2, 5, 6)}


def test_likelihoods_of_a_softmax_model_are_refused() -> None:
    for score in (scores.NegativeLogLikelihood(), scores.Typicality([0.0] * 3), scores.LinkedLikelihood()):
        with pytest.raises(ValueError, match="no mixture likelihoods"):
            score(output(generative=False))
