"""Money against p-values: wealth that grows when they are not uniform, and else stays what it was on average.

Whoever bets on numbers that are independent and uniform, at fair odds and without debts, multiplies a start
of one by 1/alpha with a probability of at most alpha, however long the game goes on (Ville's inequality).
"""

import numpy as np
from numpy.typing import NDArray

EXPONENTS = (0.1, 0.3, 0.6)
"""A bet on small p-values multiplies an amount by ``e * p ** (e - 1)``, of mean one over uniform p."""
_SMALLEST = 2.0**-60  # p-values below are taken for it, which only lowers what a bet wins
_NOTHING = -1e300  # the log of an amount that is not there yet; files hold no infinity

Values = NDArray[np.float64]


def log_wins(p: Values | float, *, two_sided: bool) -> Values:
    """Logs of what bets multiply an amount by at p-values (...): (bets ...), in favour of small ones or,
    two-sided, also of large ones."""
    p_values = np.asarray(p, np.float64)
    sides = (p_values, 1 - p_values) if two_sided else (p_values,)
    logs = [np.log(np.maximum(side, _SMALLEST)) for side in sides]
    return np.stack([np.log(each) + (each - 1) * side for side in logs for each in EXPONENTS])


def unspent(images: int) -> float:
    """The share of the start that is not bet yet after so many images.

    At every image a part of it is put on the bets, so that a change late in a stream finds money that was
    not lost before. It lasts for ever: the part at image t is about 1 / (t log^2 t).
    """
    return 1 / float(np.log2(images + 2))


class Wealth:
    """A start of one, put on bets a part at each image and left there."""

    def __init__(self, *, two_sided: bool) -> None:
        self.two_sided = two_sided
        self.images = 0
        self.log_amounts: Values = np.full(len(EXPONENTS) * (1 + two_sided), _NOTHING)

    def step(self, p: float) -> None:
        """Bet on the next p-value, which must be uniform whatever came before, if nothing has changed."""
        part = (unspent(self.images) - unspent(self.images + 1)) / len(self.log_amounts)
        with_part = np.logaddexp(self.log_amounts, np.log(part))
        self.log_amounts = with_part + log_wins(p, two_sided=self.two_sided)
        self.images += 1

    def restore(self, log_amounts: Values, images: int) -> None:
        """Go on with these amounts after so many images."""
        self.log_amounts, self.images = log_amounts, images

    @property
    def log_value(self) -> float:
        """Log of all there is: amounts on bets and what is unspent."""
        return float(np.logaddexp.reduce([*self.log_amounts, np.log(unspent(self.images))]))
