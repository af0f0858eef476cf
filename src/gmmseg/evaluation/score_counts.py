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

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gmmseg.float_order import keys

BIN_BITS = 11
NUM_BINS = 1 << (32 - BIN_BITS)
SLOT_BITS = 18
NUM_SLOTS = 1 << SLOT_BITS
_BLOCK = 1 << 17  # keys held at a time: few enough for the cache, and so many that threads seldom wait for
# each other between operations
_WORTH_THREADS = 1 << 21  # pixels from which threads save more than it takes to start them


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


def _bins_of(keys: NDArray[np.uint32], out: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """(n) bin of each key (n), in ``out``."""
    return np.right_shift(keys, BIN_BITS, out=out)


class _PlacesOf(Protocol):
    """Which counter of a table counts each key (n), in ``out`` (n)."""

    def __call__(self, keys: NDArray[np.uint32], out: NDArray[np.uint32]) -> NDArray[np.uint32]: ...


class _Table(NamedTuple):
    """Counters (2 size), of all keys and of the anomalous ones, and where they count a key."""

    counters: NDArray[np.int64]
    places_of: _PlacesOf


def count_(bins: NDArray, folded: NDArray, values: NDArray[np.float32], anomalous: NDArray[np.bool_]) -> None:
    """Add scores (n) to ``bins`` (2 bins) and ``folded`` (tables 2 slots): [0] all, [1] the anomalous.

    Large images are counted by as many threads as torch may use, each with tables of its own: no two write
    the same one, and none waits for another.
    """
    tables = [_Table(bins, _bins_of), *(_Table(*pair) for pair in zip(folded, (f.slots for f in FOLDINGS)))]
    workers = min(torch.get_num_threads(), len(tables)) if len(values) >= _WORTH_THREADS else 1
    if workers == 1:
        _count_(tables, values, anomalous)
        return
    with ThreadPoolExecutor(workers) as pool:
        shares = [tables[worker::workers] for worker in range(workers)]
        list(pool.map(partial(_count_, values=values, anomalous=anomalous), shares))


def _count_(tables: Sequence[_Table], values: NDArray[np.float32], anomalous: NDArray[np.bool_]) -> None:
    """Count scores (n) in row 0 of each of the tables and the anomalous ones of them in row 1."""
    size = min(_BLOCK, len(values))
    made, slots = np.empty(size, dtype=np.uint32), np.empty(size, dtype=np.uint32)
    places, ones = torch.empty(size, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
    for start in range(0, len(values), _BLOCK):
        block = keys(values[start : start + _BLOCK], out=made[: len(values) - start])
        found = block[np.flatnonzero(anomalous[start : start + _BLOCK])]
        for counters, places_of in tables:
            for row, counted in zip(torch.from_numpy(counters), (block, found)):
                here = places[: len(counted)]
                np.copyto(here.numpy(), places_of(counted, out=slots[: len(counted)]))
                row.scatter_add_(0, here, ones[: len(counted)])
