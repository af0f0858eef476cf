"""Numbers of any range as integers: the bits of a float32, suitably flipped, order like the number.

So the leading bits of a key are bins that fit every range and sign.
"""

import numpy as np
from numpy.typing import NDArray

_LOWEST, _HIGHEST = np.uint32(0x007FFFFF), np.uint32(0xFF800000)  # keys of -inf and +inf


def keys(scores: NDArray[np.float32], out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """(n) keys that order like the scores (n), in ``out`` if that is given; both zeros have one key."""
    unsigned = np.empty(scores.shape, dtype=np.uint32) if out is None else out
    bits = unsigned.view(np.int32)
    np.add(scores, np.float32(0), out=unsigned.view(np.float32))
    bits ^= (bits >> 31) | np.int32(-(2**31))
    return unsigned


def scores(keys: NDArray[np.uint32]) -> NDArray[np.float64]:
    """(n) scores of the keys (n); keys beyond the numbers give the infinity next to them."""
    inside = np.clip(keys, _LOWEST, _HIGHEST)
    flipped = np.where(inside >> 31 == 1, inside ^ np.uint32(1 << 31), ~inside)
    return flipped.astype(np.uint32).view(np.float32).astype(np.float64)
