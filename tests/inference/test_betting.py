"""Wealth is a martingale that starts at one, and Ville's bound holds."""

import numpy as np
import pytest
from scipy.stats import binom

from gmmseg.inference.betting import EXPONENTS, Wealth, log_wins, unspent


@pytest.mark.parametrize("two_sided", [False, True])
def test_bets_are_fair(two_sided):
    """The mean of what a bet multiplies by, over uniform p-values: one, by integration in log p."""
    logs = np.linspace(-400, 0, 400_001)
    p_values = np.exp(logs)
    # The left half by small p; the right half, where two-sided bets win, mirrors it.
    won = np.exp(log_wins(p_values, two_sided=False) + logs)
    assert np.trapezoid(won, logs) == pytest.approx(np.ones(len(EXPONENTS)), abs=2e-2)
    if two_sided:
        both = log_wins(np.array([0.2, 0.8]), two_sided=True)
        np.testing.assert_allclose(both[: len(EXPONENTS), 0], both[len(EXPONENTS) :, 1])


@pytest.mark.parametrize("two_sided", [False, True])
def test_the_start_is_one_and_nothing_is_lost_at_fair_odds(two_sided):
    """Where a bet multiplies by exactly one, the wealth stays one: parts and rest are all of it."""
    wealth = Wealth(two_sided=two_sided)
    assert wealth.log_value == pytest.approx(0)
    assert unspent(0) == 1
    slow = naive = 0.0
    amounts = np.zeros(len(wealth.log_amounts))
    for index, p in enumerate(np.random.default_rng(0).random(50)):
        wealth.step(p)
        part = (unspent(index) - unspent(index + 1)) / len(amounts)
        amounts = (amounts + part) * np.exp(log_wins(p, two_sided=two_sided))
        slow, naive = amounts.sum() + unspent(index + 1), wealth.log_value
        assert slow == pytest.approx(np.exp(naive))


def simulated(p_values, two_sided):
    """The log wealth (t s) of many streams at once, by p-values (t s)."""
    bets = len(EXPONENTS) * (1 + two_sided)
    amounts = np.full((bets, p_values.shape[1]), -np.inf)
    found = []
    for index, p in enumerate(p_values):
        part = (unspent(index) - unspent(index + 1)) / bets
        amounts = np.logaddexp(amounts, np.log(part)) + log_wins(p, two_sided=two_sided)
        rest = np.full((1, p_values.shape[1]), np.log(unspent(index + 1)))
        found.append(np.logaddexp.reduce(np.concatenate([amounts, rest])))
    return np.array(found)


@pytest.mark.parametrize("two_sided", [False, True])
def test_villes_bound_holds_over_a_thousand_streams(two_sided):
    p_values = np.random.default_rng(1).random((600, 1000))
    wealth = simulated(p_values, two_sided)
    for alpha in (0.2, 0.05, 0.01):
        alarms = int((wealth.max(0) >= np.log(1 / alpha)).sum())
        assert alarms <= binom.ppf(0.999, 1000, alpha)
    # Of mean one after a few steps, where the tail is not yet too heavy to average.
    assert np.exp(wealth[0]).mean() == pytest.approx(1, abs=0.15)


def test_a_late_change_is_noticed_and_both_directions_count():
    rng = np.random.default_rng(2)
    for p_values in (rng.random(60) ** 6, 1 - rng.random(60) ** 6):
        one, both = Wealth(two_sided=False), Wealth(two_sided=True)
        for p in [*rng.random(2000), *p_values]:
            one.step(p)
            both.step(p)
        assert both.log_value > np.log(1000)
        assert (one.log_value > np.log(1000)) == (p_values.mean() < 0.5)
