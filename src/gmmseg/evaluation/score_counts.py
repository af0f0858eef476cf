"""Counting float32 scores of any range in constant memory: linear tables over their bit patterns.

`gmmseg.float_order` makes of a score an unsigned integer (its *key*) that orders like the number. Three kinds
of tables count keys. All are plain sums, so they merge exactly and no order can matter:

- ``bins`` has a counter of its own for each value of a key's upper 21 bits, 4,096 bins per octave of either
  sign;
- ``groups`` counts runs of 64 consecutive keys, modulo its size: two octaves fit without sharing a counter;
- ``single`` counts single keys, modulo its size, twice over.

Tables that count modulo their size share counters between distant scores; a pseudo-random shift for each
stretch of keys as long as the table keeps those meetings accidental, and differently so in the two rows of
``single``. ``gmmseg.evaluation.score_order`` reads the tables back.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gmmseg.float_order import keys

BIN_BITS = 11
NUM_BINS = 1 << (32 - BIN_BITS)
SLOT_BITS = 18
NUM_SLOTS = 1 << SLOT_BITS
_CHUNK = 1 << 19  # keys counted at a time


@dataclass(frozen=True)
class Folding:
    """Where a table of 2^18 counters counts the runs of 2^``run_bits`` keys: modulo its size, with shifts."""

    run_bits: int
    multiplier: np.uint32

    def slots(self, keys: NDArray[np.uint32], out: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """(n) counter of each key (n), in ``out`` if that is given."""
        slots = np.right_shift(keys, self.run_bits + SLOT_BITS, out=out)
        slots *= self.multiplier
        slots >>= np.uint32(32 - SLOT_BITS)
        slots += keys >> self.run_bits if self.run_bits else keys
        slots &= np.uint32(NUM_SLOTS - 1)
        return slots


GROUPS = (Folding(6, np.uint32(3266489917)),)
SINGLE = (Folding(0, np.uint32(2654435769)), Folding(0, np.uint32(2246822519)))
FOLDINGS = GROUPS + SINGLE


def count_(bins: NDArray, folded: NDArray, values: NDArray[np.float32], anomalous: NDArray[np.bool_]) -> None:
    """Add scores (n) to ``bins`` (2 bins) and ``folded`` (tables 2 slots): [0] all, [1] the anomalous."""
    # Memory for a chunk is taken once: fresh pages cost more than the arithmetic on them.
    size = min(_CHUNK, len(values))
    key_scratch, slot_scratch = np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)
    place_scratch = np.empty(size, dtype=np.int64)
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        found = np.flatnonzero(anomalous[start : start + _CHUNK])
        chunk_keys = keys(chunk, out=key_scratch[: len(chunk)])
        out, places = slot_scratch[: len(chunk)], place_scratch[: len(chunk)]
        np.copyto(places, np.right_shift(chunk_keys, BIN_BITS, out=out))
        _count_both_(bins, places, found)
        for table, folding in zip(folded, FOLDINGS):
            np.copyto(places, folding.slots(chunk_keys, out=out))
            _count_both_(table, places, found)


def _count_both_(table: NDArray, places: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    """Count all ``places`` in table[0] and the ``found`` ones of them in table[1]."""
    if len(places) < table.shape[1]:
        np.add.at(table[0], places, 1)
    else:  # twice as fast where the table is the smaller of the two
        table[0] += np.bincount(places, minlength=table.shape[1])
    np.add.at(table[1], places[found], 1)
